use kennel_testkit::Scope;

use super::super::launcher;
use super::*;

fn parsed(text: &str) -> ServersToml {
    let (config, problems) = ServersToml::parse(text, Some(Path::new("/home/a")));
    assert_eq!(problems, Vec::new(), "{text}");
    config
}

fn problems(text: &str) -> Vec<String> {
    let (_, problems) = ServersToml::parse(text, Some(Path::new("/home/a")));
    let told = |problem: Unreadable| format!("{} {}", problem.line, problem.what);
    problems.into_iter().map(told).collect()
}

fn share(config: &ServersToml, command: &str) -> Option<Rule> {
    let words: Vec<&str> = command.split(' ').collect();
    let launched = launcher::launched(&words)?;
    config.entry_for(&launched)?.share
}

#[test]
fn a_server_is_matched_by_package_program_module_or_path() {
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
fn all_keys_are_read_and_the_first_matching_entry_counts() {
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
fn inline_tables_mean_the_same_as_tables_with_headers() {
    let inline = "server = [{ match = \"a\", share = \"never\" }]\ndefaults = { linger = \"5m\" }";
    let headers = "[[server]]\nmatch = \"a\"\nshare = \"never\"\n[defaults]\nlinger = \"5m\"";
    assert_eq!(parsed(inline), parsed(headers));
    let told = problems("a = 1\nserver = [1]\n");
    assert!(told[1].starts_with("2 write [[server]]"), "{told:?}");
}

#[test]
fn an_empty_file_has_no_entries() {
    for text in ["", "\n# nothing yet\n"] {
        assert_eq!(parsed(text), ServersToml::default());
    }
}

#[test]
fn a_file_that_is_no_toml_is_ignored_with_its_line() {
    let text = "[[server]]\nmatch = \"a\"\nshare = always\n";
    let told = problems(text);
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("3 "), "{told:?}");
    assert!(told[0].ends_with("the whole file is ignored"), "{told:?}");
    assert_eq!(
        ServersToml::parse(text, Some(Path::new("/home/a"))).0,
        ServersToml::default()
    );
}

#[test]
fn an_unusable_key_is_reported_with_its_line() {
    for (text, told) in [
        ("\nservers = 1", "2 unknown: servers"),
        ("[server]\nmatch = \"a\"", "1 write [[server]]"),
        ("\n[[server]]\nshare = \"never\"", "2 name the server"),
        ("[[server]]\nmatch = 1", "2 name the server"),
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
        let all = problems(text);
        assert_eq!(all.len(), 1, "{text}: {all:?}");
        assert!(all[0].starts_with(told), "{text}: {all:?}");
    }
}

#[test]
fn an_unreadable_entry_means_dedicated_and_the_others_are_read() {
    let text =
        "[[server]]\nmatch = \"a\"\nshare = true\n[[server]]\nmatch = \"b\"\nshare = \"always\"";
    let (config, problems) = ServersToml::parse(text, Some(Path::new("/home/a")));
    assert_eq!(problems.len(), 1);
    assert_eq!(share(&config, "a"), Some(Rule::Never));
    assert_eq!(share(&config, "b"), Some(Rule::Always));
}

#[test]
fn the_file_is_where_configuration_belongs() {
    let os = |text: &str| Some(OsString::from(text));
    let at = |path: &str| Some(PathBuf::from(path));
    let home = Some(Path::new("/home/a"));
    let usual = at("/home/a/.config/kennel/servers.toml");
    assert_eq!(path_of_user(None, home), usual);
    assert_eq!(path_of_user(os(""), home), usual);
    assert_eq!(path_of_user(os("relative"), home), usual);
    assert_eq!(
        path_of_user(os("/etc/x"), home),
        at("/etc/x/kennel/servers.toml")
    );
    assert_eq!(
        path_of_user(os("/etc/x"), None),
        at("/etc/x/kennel/servers.toml")
    );
    assert_eq!(path_of_user(None, None), None);
}

#[test]
fn a_missing_file_is_accepted_and_any_other_error_is_reported_with_its_path() {
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
        warnings[0].contains("servers.toml, line 2, column 1: name the server"),
        "{warnings:?}"
    );
    for content in [&b"\xff"[..], &vec![b'#'; MAX_SIZE as usize + 1]] {
        std::fs::write(&file, content).unwrap();
        let (config, warnings) = ServersToml::load(&file, None);
        assert_eq!((config, warnings.len()), (ServersToml::default(), 1));
    }
    let (config, warnings) = ServersToml::load(scope.dir(), None);
    assert_eq!(config, ServersToml::default());
    assert!(warnings[0].ends_with("it is ignored"), "{warnings:?}");
}

const NAMED: &str = r#"
[defaults]
linger = "5m"
stop_after = "1s,2s"

[[server]]
name = "memory"
command = ["npx", "-y", "@modelcontextprotocol/server-memory"]
cwd = "~"
env_key = ["MEMORY_FILE_PATH"]
linger = "1h"

[[server]]
name = "mine"
match = "other"
command = ["~/bin/mine", "serve"]
share = "always"

[[server]]
name = "yours"
command = ["yours"]
share = "always"
"#;

#[test]
fn a_named_server_has_the_command_of_its_entry() {
    let config = parsed(NAMED);
    let memory = config.named("memory").unwrap();
    assert_eq!(memory.command[0], "npx");
    assert_eq!(memory.cwd.as_deref(), Some(Path::new("/home/a/")));
    assert_eq!(
        memory.env_key.as_deref(),
        Some(&["MEMORY_FILE_PATH".to_owned()][..])
    );
    let mine = config.named("mine").unwrap();
    assert_eq!(mine.command, ["/home/a/bin/mine", "serve"]);
    assert_eq!(config.named("other"), None);
    let names: Vec<&str> = config.all_named().map(|it| it.name.as_str()).collect();
    assert_eq!(names, ["memory", "mine", "yours"]);
}

#[test]
fn a_named_servers_rule_applies_to_its_command_unless_match_is_set() {
    let config = parsed(NAMED);
    assert_eq!(share(&config, "yours --fast"), Some(Rule::Always));
    assert_eq!(share(&config, "other"), Some(Rule::Always));
    assert_eq!(share(&config, "/home/a/bin/mine serve"), None);
}

#[test]
fn a_servers_own_timers_come_before_those_of_all() {
    let config = parsed(NAMED);
    let timers = |line: &str| {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        config.timers_for(&words)
    };
    let own = timers("npx -y @modelcontextprotocol/server-memory");
    assert_eq!(own[0], ("linger", "1h".to_owned()));
    let all = timers("docker run x");
    assert_eq!(
        all,
        [
            ("linger", "5m".to_owned()),
            ("stop-after", "1s,2s".to_owned())
        ]
    );
}

#[test]
fn a_mistake_is_reported_with_its_line_and_column() {
    for (text, line, column, told) in [
        ("[defaults]\nlinger = \"soon\"", 2, 1, "\"soon\""),
        ("[defaults]\n  share = \"always\"", 2, 3, "unknown: share"),
        (
            "[[server]]\nname = \"a b\"\ncommand = [\"x\"]",
            2,
            1,
            "may contain only letters",
        ),
        ("[[server]]\nname = \"a\"\n", 2, 1, "has no command"),
        ("[[server]]\ncommand = [\"x\"]", 2, 1, "needs a name"),
        (
            "[[server]]\nname = \"a\"\n    command = \"npx x\"",
            3,
            5,
            "is a list",
        ),
        ("[[server]]\nmatch = \"a\"\nlinger = 5", 3, 1, "a duration"),
        (
            "[defaults]\nmax_line = 134217728",
            2,
            1,
            "max_line is a size such as 128M",
        ),
        ("[defaults]\nmax_line = \"big\"", 2, 1, "is not a size"),
        ("[defaults]\nmax_line = \"8K\"", 2, 1, "the minimum is 256K"),
        (
            "[defaults]\ndetached = true",
            2,
            1,
            "\"auto\", \"keep\" or \"end\"",
        ),
        ("[defaults]\nstop_after = 5", 2, 1, "one or two durations"),
        (
            "[[server]]\nmatch = \"a\"\nenv_key = \"A\"",
            3,
            1,
            "list of names",
        ),
        ("x = [1", 1, 7, ""),
    ] {
        let (_, problems) = ServersToml::parse(text, None);
        let first = &problems[0];
        assert_eq!(
            (first.line, first.column),
            (line, column),
            "{text}: {}",
            first.what
        );
        assert!(first.what.contains(told), "{text}: {}", first.what);
    }
}
