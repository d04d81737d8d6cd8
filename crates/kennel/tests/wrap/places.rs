//! Where files are, and how they may be written.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use kennel_testkit::{run, wait_for};

use crate::stage::Person;

const CURSOR: &str = "home/.cursor/mcp.json";
const TEXT: &str =
    "{\"mcpServers\": {\"a\": {\"command\": \"thing\", \"env\": {\"KEY\": \"s3cret\"}}}}\n";

fn mode(person: &Person, path: &str) -> u32 {
    person.file(path).metadata().unwrap().mode() & 0o7777
}

#[test]
fn a_read_only_file_is_refused_with_what_to_do() {
    let person = Person::new();
    let file = person.write(CURSOR, TEXT);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o444)).unwrap();
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stderr.contains("read-only") && ended.stderr.contains("chmod u+w"),
        "{}",
        ended.stderr
    );
    assert_eq!(
        (person.read(CURSOR).as_str(), mode(&person, CURSOR)),
        (TEXT, 0o444)
    );
    assert!(person.kept().is_empty());
}

#[test]
fn a_read_only_file_does_not_keep_the_others_from_being_wrapped() {
    let person = Person::new();
    let file = person.write(CURSOR, TEXT);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).unwrap();
    person.write("project/.mcp.json", TEXT);
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(1));
    assert_eq!(person.read(CURSOR), TEXT);
    assert!(person.read("project/.mcp.json").contains("\"run\""));
}

#[test]
fn a_linked_dotfile_stays_a_link_and_keeps_its_mode() {
    let person = Person::new();
    let file = person.write("home/dotfiles/cursor.json", TEXT);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::fs::create_dir(person.file("home/.cursor")).unwrap();
    symlink("../dotfiles/cursor.json", person.file(CURSOR)).unwrap();
    person.wraps();
    assert!(person.file(CURSOR).symlink_metadata().unwrap().is_symlink());
    assert!(person.read("home/dotfiles/cursor.json").contains("\"run\""));
    assert_eq!(mode(&person, "home/dotfiles/cursor.json"), 0o640);
    person.unwraps();
    assert!(person.file(CURSOR).symlink_metadata().unwrap().is_symlink());
    assert_eq!(person.read("home/dotfiles/cursor.json"), TEXT);
    assert_eq!(mode(&person, "home/dotfiles/cursor.json"), 0o640);
}

#[test]
fn what_is_no_json_is_told_with_its_line_and_left_alone() {
    let person = Person::new();
    let broken = "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"x\" \"args\": [] }\n  }\n}\n";
    person.write(CURSOR, broken);
    person.write(
        "home/.codex/config.toml",
        "[mcp_servers.a]\ncommand = \"x\"\nargs = [\"a\" \"b\"]\n",
    );
    person.write(
        "home/.config/goose/config.yaml",
        "extensions:\n  a: {cmd: x}\n",
    );
    person.write("project/.mcp.json", TEXT);
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(1));
    for told in [
        ".cursor/mcp.json: line 3, column 27",
        "config.toml: line 3",
        "config.yaml: line 2",
    ] {
        assert!(ended.stderr.contains(told), "{told}: {}", ended.stderr);
    }
    assert_eq!(person.read(CURSOR), broken);
    assert!(
        person.read("project/.mcp.json").contains("\"run\""),
        "the others are wrapped"
    );
}

#[test]
fn the_backup_is_nobody_elses_to_read_and_the_diff_keeps_values_to_itself() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    let ended = person.kennel(&["wrap", "--yes"]);
    assert!(
        !ended.stdout.contains("s3cret") && ended.stdout.contains("--env-key"),
        "{}",
        ended.stdout
    );
    let kept = person.kept();
    assert_eq!(kept.len(), 2);
    for file in kept {
        assert_eq!(file.metadata().unwrap().mode() & 0o077, 0);
        assert_eq!(file.parent().unwrap().metadata().unwrap().mode() & 0o077, 0);
    }
}

#[test]
fn a_program_in_a_build_tree_is_refused_with_how_to_install() {
    let person = Person::new();
    person.write(CURSOR, TEXT);
    let mut command = person.scope.command(env!("CARGO_BIN_EXE_kennel"));
    let ended = run(command.args(["wrap", "--yes"]));
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stderr.contains("cargo xtask install"),
        "{}",
        ended.stderr
    );
    assert_eq!(person.read(CURSOR), TEXT);
}

#[test]
fn an_app_that_writes_its_file_itself_is_quit_first() {
    let person = Person::new();
    person.write("home/.claude.json", TEXT);
    let mut app = person.scope.command("sleep");
    let mut app = app.arg0("claude").arg("1000").spawn().unwrap();
    let line = format!("/proc/{}/cmdline", app.id());
    wait_for("the app runs", || {
        std::fs::read(&line)
            .is_ok_and(|line| line.starts_with(b"claude"))
            .then_some(())
    });
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(1));
    assert!(
        ended.stderr.contains("Claude Code runs") && ended.stderr.contains("quit it first"),
        "{}",
        ended.stderr
    );
    assert_eq!(person.read("home/.claude.json"), TEXT);
    app.kill().unwrap();
    app.wait().unwrap();
    person.wraps();
    assert!(person.read("home/.claude.json").contains("\"run\""));
}

#[test]
fn a_file_anywhere_is_wrapped_by_its_name_and_remembered() {
    let person = Person::new();
    person.write("project/odd/place.json", TEXT);
    let ended = person.kennel(&["wrap", "--yes", "--file", "odd/place.json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(person.read("project/odd/place.json").contains("\"run\""));
    person.unwraps();
    assert_eq!(person.read("project/odd/place.json"), TEXT);
    person.write("project/odd/place.txt", TEXT);
    let ended = person.kennel(&["wrap", "--yes", "--file", "odd/place.txt"]);
    assert_eq!(ended.code(), Some(1));
    assert!(ended.stderr.contains("must end in"), "{}", ended.stderr);
}

#[test]
fn hard_links_are_not_broken_without_a_word() {
    let person = Person::new();
    let file = person.write(CURSOR, TEXT);
    let other = person.file("home/dotfiles.json");
    std::fs::hard_link(&file, &other).unwrap();
    let ended = person.kennel(&["wrap", "--yes"]);
    assert_eq!(ended.code(), Some(1));
    let told = &ended.stderr;
    assert!(
        told.contains("2 names (hard links)") && told.contains("cp -p "),
        "{told}"
    );
    assert_eq!(person.read(CURSOR), TEXT);
    assert_eq!(
        file.metadata().unwrap().ino(),
        other.metadata().unwrap().ino()
    );
    assert!(person.kept().is_empty());
    // What it says to do helps.
    std::fs::remove_file(&other).unwrap();
    person.wraps();
    assert!(person.read(CURSOR).contains("\"run\""));
}

#[test]
fn what_a_killed_wrap_left_is_removed_by_the_next_command() {
    let person = Person::new();
    let file = person.write(CURSOR, TEXT);
    let left = |name: &str| file.with_file_name(name);
    let names = [".mcp.json.kennel-4711", ".mcp.json.kennel-1"];
    for command in ["wrap", "unwrap"] {
        for name in names {
            std::fs::write(left(name), TEXT).unwrap();
        }
        // Nobody's but its owner's.
        let others = [
            ".mcp.json.kennel-x",
            ".mcp.json.kennel-",
            "other.json.kennel-1",
        ];
        for name in others {
            std::fs::write(left(name), TEXT).unwrap();
        }
        // One that is being written.
        let held = std::fs::File::create(left(".mcp.json.kennel-2")).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let ended = person.kennel(&[command, "--dry-run"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert!(left(names[0]).exists(), "a dry run changes nothing");
        let ended = person.kennel(&[command, "--yes"]);
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
        assert!(names.iter().all(|name| !left(name).exists()), "{command}");
        assert!(others.iter().all(|name| left(name).exists()), "{command}");
        assert!(left(".mcp.json.kennel-2").exists(), "{command}");
    }
}

/// By a limit on the size of files: what is there fits, and what `wrap` would write does not.
#[test]
fn a_wrap_that_fails_leaves_the_records_as_they_were() {
    const LIMITED: &str = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let person = Person::new();
    let fails = || {
        let mut limited = person.command_of("sh");
        limited.args(["-c", LIMITED, "sh"]).arg(&person.program);
        let ended = run(limited.args(["wrap", "--yes"]));
        assert_eq!(ended.code(), Some(1), "{}{}", ended.stdout, ended.stderr);
        let told = &ended.stderr;
        assert!(told.contains("cannot be written"), "{told}");
    };
    let kept = || {
        let read = |path: PathBuf| (std::fs::read(&path).unwrap(), path);
        let mut kept: Vec<_> = person.kept().into_iter().map(read).collect();
        kept.sort();
        kept
    };
    let text = "{\"mcpServers\": {\"a\": {\"command\": \"thing\"}}}";
    let text = format!("{text}{}\n", " ".repeat(8 * 512 - 50 - text.len()));
    person.write(CURSOR, &text);
    fails();
    assert_eq!(person.read(CURSOR), text);
    assert!(!person.file("home/.local/state/kennel").exists());

    let add = |text: &str| text.replacen("\"a\":", "\"b\": {\"command\": \"b\"}, \"a\":", 1);
    person.wraps();
    let before = kept();
    let edited = add(&person.read(CURSOR));
    person.write(CURSOR, &edited);
    fails();
    assert_eq!(person.read(CURSOR), edited);
    assert_eq!(kept(), before);
    person.unwraps();
    assert_eq!(person.read(CURSOR), add(&text));
}
