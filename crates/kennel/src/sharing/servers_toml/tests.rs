use kennel_testkit::Scope;

use super::super::launcher;
use super::*;

fn parsed(text: &str) -> ServersToml {
    let (config, complaints) = ServersToml::parse(text, Some(Path::new("/home/a")));
    assert_eq!(complaints, Vec::new(), "{text}");
    config
}

fn complaints(text: &str) -> Vec<String> {
    let (_, complaints) = ServersToml::parse(text, Some(Path::new("/home/a")));
    let told = |complaint: Complaint| format!("{} {}", complaint.line, complaint.what);
    complaints.into_iter().map(told).collect()
}

fn share(config: &ServersToml, command: &str) -> Option<Rule> {
    let words: Vec<&str> = command.split(' ').collect();
    let launched = launcher::launched(&words)?;
    config.entry_for(&launched)?.share
}

#[test]
fn a_server_is_meant_by_package_program_module_or_path() {
    let entry = |name: &str| format!("[[server]]\nmatch = \"{name}\"\nshare = \"always\"");
    for (name, command) in [
        ("@acme/thing", "npx -y @acme/thing@2"),
        (
            "@acme/thing",
            "npx -y --registry https://npm.acme.example @acme/thing",
        ),
        (
            "@acme/thing",
            "node /opt/node_modules/@acme/thing/dist/index.js",
        ),
        ("thing", "/opt/bin/thing --fast"),
        ("thing", "uvx --from git+https://example.com/acme.git thing"),
        ("Acme_Thing", "uvx acme-thing==1.0"),
        ("acme_thing", "python3 -m acme_thing"),
        ("/opt/acme/server.js", "node /opt/acme/server.js"),
        ("/opt/bin/thing", "/opt/bin/thing"),
        ("~/server.py", "uv run /home/a/server.py"),
        ("~/thing", "/home/a/thing"),
    ] {
        assert_eq!(
            share(&parsed(&entry(name)), command),
            Some(Rule::Always),
            "{name}: {command}"
        );
    }
    for (name, command) in [
        ("thing", "npx -y @acme/thing"),
        ("@acme/thing", "npx -y @acme/thing-else"),
        ("@acme/thing", "npx -y @other/thing"),
        ("acme_thing", "npx acme-thing"),
        ("server.js", "node /opt/acme/server.js"),
        ("/opt/bin/thing", "/opt/bin/thing2"),
        ("/opt/bin/thing", "thing"),
        ("~/thing", "/home/b/thing"),
    ] {
        assert_eq!(
            share(&parsed(&entry(name)), command),
            None,
            "{name}: {command}"
        );
    }
}

#[test]
fn all_that_can_be_said_is_read_and_the_first_that_fits_counts() {
    let config = parsed(
        r#"
        # Mine.
        [[server]]
        match = "a"
        share = "modern"
        why = "one\nline,   please"
        cache = false

        [[server]]
        match = "a"
        share = "never"

        [[server]]
        match = "b"
        share = "never"
        "#,
    );
    let entry = &config.entries[0];
    assert_eq!(entry.share, Some(Rule::Modern));
    assert_eq!(entry.why.as_deref(), Some("one line, please"));
    assert!(!entry.cache);
    assert_eq!(share(&config, "a"), Some(Rule::Modern));
    assert_eq!(share(&config, "b"), Some(Rule::Never));
    assert_eq!(share(&config, "c"), None);
}

#[test]
fn an_empty_file_says_nothing() {
    for text in ["", "\n# nothing yet\n"] {
        assert_eq!(parsed(text), ServersToml::default());
    }
}

#[test]
fn a_file_that_is_no_toml_is_ignored_with_its_line() {
    let text = "[[server]]\nmatch = \"a\"\nshare = always\n";
    let told = complaints(text);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("3 "), "{told:?}");
    assert!(told[0].ends_with("the whole file is ignored"), "{told:?}");
    assert_eq!(
        ServersToml::parse(text, Some(Path::new("/home/a"))).0,
        ServersToml::default()
    );
}

#[test]
fn what_cannot_be_used_is_told_with_its_line() {
    for (text, told) in [
        ("\nservers = 1", "2 unknown: servers"),
        ("[server]\nmatch = \"a\"", "1 write [[server]]"),
        ("\n[[server]]\nshare = \"never\"", "2 say which server"),
        ("[[server]]\nmatch = 1", "1 say which server"),
        (
            "[[server]]\nmatch = \"a\"\n\nshaer = \"never\"",
            "4 unknown: shaer",
        ),
        ("[[server]]\nmatch = \"a\"\ncache = \"no\"", "3 cache is"),
        ("[[server]]\nmatch = \"a\"\nwhy = 3", "3 why is"),
        (
            "[[server]]\nmatch = \"a\"\nshare = \"sometimes\"",
            "3 share is",
        ),
    ] {
        let all = complaints(text);
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        assert!(all[0].starts_with(told), "{text}: {all:?}");
    }
}

#[test]
fn an_entry_nobody_can_read_means_solo_and_spares_its_neighbours() {
    let text =
        "[[server]]\nmatch = \"a\"\nshare = true\n[[server]]\nmatch = \"b\"\nshare = \"always\"";
    let (config, complaints) = ServersToml::parse(text, Some(Path::new("/home/a")));
    assert_eq!(complaints.len(), 1);
    assert_eq!(share(&config, "a"), Some(Rule::Never));
    assert_eq!(share(&config, "b"), Some(Rule::Always));
}

#[test]
fn the_file_is_where_configuration_belongs() {
    let os = |text: &str| Some(OsString::from(text));
    let at = |path: &str| Some(PathBuf::from(path));
    let home = Some(Path::new("/home/a"));
    let usual = at("/home/a/.config/kennel/servers.toml");
    assert_eq!(place(None, home), usual);
    assert_eq!(place(os(""), home), usual);
    assert_eq!(place(os("relative"), home), usual);
    assert_eq!(place(os("/etc/x"), home), at("/etc/x/kennel/servers.toml"));
    assert_eq!(place(os("/etc/x"), None), at("/etc/x/kennel/servers.toml"));
    assert_eq!(place(None, None), None);
}

#[test]
fn a_missing_file_is_fine_and_any_other_trouble_is_told_with_its_path() {
    let scope = Scope::new("servers-toml");
    let file = scope.path("servers.toml");
    assert_eq!(ServersToml::load(&file, None), Default::default());
    assert_eq!(
        ServersToml::load(&file.join("below"), None),
        Default::default()
    );
    assert!(!file.exists());

    std::fs::write(&file, "[[server]]\nmatch = 3\n").unwrap();
    let (_, warnings) = ServersToml::load(&file, None);
    assert!(
        warnings[0].contains("servers.toml, line 1: say which server"),
        "{warnings:?}"
    );
    for content in [&b"\xff"[..], &vec![b'#'; LONGEST as usize + 1]] {
        std::fs::write(&file, content).unwrap();
        let (config, warnings) = ServersToml::load(&file, None);
        assert_eq!((config, warnings.len()), (ServersToml::default(), 1));
    }
    let (config, warnings) = ServersToml::load(scope.dir(), None);
    assert_eq!(config, ServersToml::default());
    assert!(warnings[0].ends_with("it is ignored"), "{warnings:?}");
}
