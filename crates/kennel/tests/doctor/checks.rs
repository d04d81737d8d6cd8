//! Each check: what it finds, and the command that fixes it.

use std::os::unix::fs::PermissionsExt;

use kennel_sys::Signal;
use kennel_sys::process::ProcessRef;
use kennel_testkit::{Client, bin, run, tool, wait_for};

use crate::stage::{Ward, session};

fn write(ward: &Ward, path: &str, text: &str) {
    let file = ward.scope.path(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

#[test]
fn where_all_is_well_the_doctor_says_so_and_creates_nothing() {
    let ward = Ward::new();
    let ended = ward.kennel(&["doctor"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stdout);
    assert!(
        ended.stdout.contains("no problems found"),
        "{}",
        ended.stdout
    );
    assert!(!ward.scope.runtime_dir().exists());
    assert_eq!(
        std::fs::read_dir(ward.scope.path("home")).unwrap().count(),
        0
    );
    let _session = session(&ward);
    assert_eq!(
        ward.kennel(&["doctor"]).code(),
        Some(0),
        "a session is no illness"
    );
}

#[test]
fn a_runtime_directory_that_is_open_to_others_is_found_with_its_fix() {
    let ward = Ward::new();
    let dir = ward.scope.runtime_dir();
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let found = ward.findings("runtime directory");
    assert_eq!(found.len(), 1);
    let fix = found[0]["fix"].as_str().unwrap();
    assert_eq!(fix, format!("rmdir -- '{}'", dir.display()));
    // What is in it may be dear to somebody who runs.
    std::fs::write(dir.join("kept"), "").unwrap();
    let fix = ward.findings("runtime directory")[0]["fix"].clone();
    let fix = fix.as_str().unwrap();
    assert!(!fix.contains("rm -"), "{fix}");
}

#[test]
fn what_cannot_be_looked_at_is_not_ok() {
    let ward = Ward::new();
    let dir = ward.scope.runtime_dir();
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    write(&ward, "home/.cursor/mcp.json", "{");
    let said = ward.kennel(&["doctor"]).stdout;
    for check in [
        "daemons",
        "server processes",
        "records",
        "leftovers",
        "commands",
    ] {
        assert!(
            said.contains(&format!("!!  {check}: cannot be checked")),
            "{said}"
        );
        assert!(!said.contains(&format!("ok  {check}")), "{said}");
    }
}

#[test]
fn a_record_that_cannot_be_read_is_found() {
    let ward = Ward::new();
    let _session = session(&ward);
    let record = ward.scope.runtime_dir().join("solo/123456789");
    std::fs::create_dir_all(record.parent().unwrap()).unwrap();
    std::fs::set_permissions(
        record.parent().unwrap(),
        std::fs::Permissions::from_mode(0o700),
    )
    .unwrap();
    std::fs::write(&record, "{").unwrap();
    std::fs::set_permissions(&record, std::fs::Permissions::from_mode(0o600)).unwrap();
    let found = ward.findings("records");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["fix"], format!("rm -- {}", record.display()));
}

#[test]
fn a_stopped_server_is_found_with_the_command_that_continues_it() {
    let ward = Ward::new();
    let mut client = session(&ward);
    let pid = client.request("pid", serde_json::json!({}))["result"].as_u64();
    let pid = u32::try_from(pid.unwrap()).unwrap();
    let server = ProcessRef::open(pid).unwrap();
    wait_for("the session is listed", || {
        let listed = ward.kennel(&["ps", "--json"]).stdout;
        listed.contains(&pid.to_string()).then_some(())
    });
    assert!(ward.findings("server processes").is_empty());
    server.signal(Signal::STOP).unwrap();
    let found = wait_for("the stopped server is found", || {
        ward.findings("server processes").pop()
    });
    assert_eq!(found["pid"], pid);
    assert_eq!(found["fix"], format!("kill -CONT {pid}"));
    let what = format!("the server of tk-server is stopped (SIGSTOP, pid {pid})");
    assert_eq!(found["what"], what);
    server.signal(Signal::CONT).unwrap();
    wait_for("nothing is found", || {
        ward.findings("server processes").is_empty().then_some(())
    });
}

#[test]
fn an_app_that_starts_servers_itself_is_found_and_one_that_does_not_is_not() {
    let ward = Ward::new();
    let server = bin("tk-server");
    let direct = format!(
        "{{\"mcpServers\": {{\"a\": {{\"command\": {server:?}}}, \"r\": {{\"url\": \"https://x\"}}}}}}"
    );
    write(&ward, "home/.cursor/mcp.json", &direct);
    let found = ward.findings("apps");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0]["what"]
            .as_str()
            .unwrap()
            .contains("Cursor starts a directly")
    );
    assert_eq!(found[0]["fix"], "kennel wrap");
    let behind = format!(
        "{{\"mcpServers\": {{\"a\": {{\"command\": {:?}, \"args\": [\"run\", \"--\", {server:?}]}}}}}}",
        env!("CARGO_BIN_EXE_kennel")
    );
    write(&ward, "home/.cursor/mcp.json", &behind);
    assert!(ward.findings("apps").is_empty());
    assert!(ward.findings("commands").is_empty());
}

#[test]
fn wrap_is_prescribed_once_and_only_for_what_it_would_change() {
    let ward = Ward::new();
    let server = bin("tk-server");
    // What `wrap` skips, and what the app is told not to start.
    let skipped = format!(
        r#"{{"mcpServers": {{
            "spaces": {{"command": "no-such-thing --with words"}},
            "remote": {{"url": "https://x"}},
            "disabled": {{"command": {server:?}, "disabled": true}},
            "off": {{"command": "no-such-program-here", "enabled": false}}
        }}}}"#
    );
    write(&ward, "home/.cursor/mcp.json", &skipped);
    let codex = "[mcp_servers.off]\ncommand = \"no-such-program-here\"\nenabled = false\n";
    write(&ward, "home/.codex/config.toml", codex);
    let goose = "extensions:\n  off:\n    type: stdio\n    cmd: no-such-program-here\n    enabled: false\n    args: []\n";
    write(&ward, "home/.config/goose/config.yaml", goose);
    // A project's, which others have too. The doctor looks in the directory in which it runs.
    let direct = format!(r#"{{"mcpServers": {{"a": {{"command": {server:?}}}}}}}"#);
    write(&ward, "home/.git/HEAD", "");
    write(&ward, "home/.mcp.json", &direct);
    assert_eq!(ward.findings("apps"), [serde_json::Value::Null; 0]);
    let found = ward.findings("commands");
    assert!(
        !format!("{found:?}").contains("no-such-program-here"),
        "{found:?}"
    );
    // Two files, one cause, one command.
    write(&ward, "home/.cursor/mcp.json", &direct);
    write(&ward, "home/.gemini/settings.json", &direct);
    let found = ward.findings("apps");
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["fix"], "kennel wrap");
    let what = found[0]["what"].as_str().unwrap();
    assert!(
        what.contains("Cursor starts a") && what.contains("Gemini"),
        "{what}"
    );
    let said = ward.kennel(&["doctor"]).stdout;
    assert_eq!(
        said.lines().filter(|line| line.contains("apps")).count(),
        1,
        "{said}"
    );
    // What keeps `wrap` from writing comes first.
    let file = ward.scope.path("home/.gemini/settings.json");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).unwrap();
    let found = ward.findings("apps");
    let fixes: Vec<&str> = found.iter().filter_map(|it| it["fix"].as_str()).collect();
    assert!(fixes.contains(&"kennel wrap"), "{found:?}");
    let fix = fixes.iter().find(|fix| fix.contains("chmod u+w"));
    assert!(
        fix.is_some_and(|fix| fix.contains("then `kennel wrap`")),
        "{found:?}"
    );
}

#[test]
fn a_runtime_directory_that_cannot_be_written_is_found() {
    let ward = Ward::new();
    // Nobody creates anything there, root neither.
    let mut command = ward.scope.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args(["doctor", "--json"])
        .env("KENNEL_RUNTIME_DIR", "/proc/kennel-of-a-test")
        .env("KENNEL_REAP_ONLY", "NOBODY_HAS=this")
        .current_dir(ward.scope.path("home"));
    let said = run(&mut command).stdout;
    assert!(said.contains("cannot write to /proc"), "{said}");
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_runtime_directory_that_is_read_only_or_full_is_found() {
    let Some(unshare) = tool("unshare") else {
        return;
    };
    let ward = Ward::new();
    let dir = ward.scope.path("mounted");
    std::fs::create_dir(&dir).unwrap();
    let kennel = env!("CARGO_BIN_EXE_kennel");
    let at = dir.display();
    for (mount, words) in [
        (
            format!("mount -t tmpfs -o ro none '{at}'"),
            "Read-only file system",
        ),
        (
            format!(
                "mount -t tmpfs -o size=64k none '{at}' && dd if=/dev/zero of='{at}/all' 2>/dev/null"
            ),
            "No space left",
        ),
    ] {
        // The fill ends with an error, as it should.
        let line = format!("{mount}; exec '{kennel}' doctor --json");
        let mut command = ward.scope.command(&unshare);
        command
            .args(["--mount", "sh", "-c", &line])
            .env("KENNEL_RUNTIME_DIR", dir.join("kennel"))
            .env("KENNEL_REAP_ONLY", "NOBODY_HAS=this")
            .current_dir(ward.scope.path("home"));
        let ended = run(&mut command);
        assert!(
            ended.stdout.contains(words),
            "{}{}",
            ended.stdout,
            ended.stderr
        );
        assert!(
            ended.stdout.contains("runtime directory"),
            "{}",
            ended.stdout
        );
    }
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_a_change_that_a_read_only_file_system_does_not_allow_is_not_proposed() {
    let Some(unshare) = tool("unshare") else {
        return;
    };
    let ward = Ward::new();
    write(
        &ward,
        "mounted/mcp.json",
        r#"{"mcpServers": {"a": {"command": "x"}}}"#,
    );
    write(&ward, "mounted/servers.toml", "[[server]]\n");
    for place in ["home/.cursor", "home/.config/kennel"] {
        let place = ward.scope.path(place);
        std::fs::create_dir_all(place.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(ward.scope.path("mounted"), place).unwrap();
    }
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(ward.scope.path("mounted/servers.toml"), open).unwrap();
    let runtime = ward.scope.path("mounted/runtime");
    std::fs::create_dir(&runtime).unwrap();
    let proposed = |mode: u32, options: &str| {
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(mode)).unwrap();
        let at = ward.scope.path("mounted").display().to_string();
        let kennel = env!("CARGO_BIN_EXE_kennel");
        let mount = format!("mount --bind '{at}' '{at}' && mount -o remount,bind,{options} '{at}'");
        let line = format!("{mount} && exec '{kennel}' doctor --json");
        let mut command = ward.scope.command(&unshare);
        command
            .args(["--mount", "sh", "-c", &line])
            .env("KENNEL_RUNTIME_DIR", &runtime)
            .env("KENNEL_REAP_ONLY", "NOBODY_HAS=this")
            .current_dir(ward.scope.path("home"));
        run(&mut command).stdout
    };
    // What can be closed, and what others may have filled and is to be removed.
    for (mode, fix) in [(0o755, "chmod 700"), (0o777, "rmdir")] {
        let said = proposed(mode, "rw");
        assert!(said.contains(fix), "{said}");
        assert!(said.contains("chmod go-w"), "{said}");
        assert!(!said.contains("read-only"), "{said}");
        let said = proposed(mode, "ro");
        assert!(!said.contains(fix), "{said}");
        let told: serde_json::Value = serde_json::from_str(&said).unwrap();
        let findings = told["findings"].as_array().unwrap().iter();
        let read_only = findings.filter(|finding| {
            let [what, fix] = ["what", "fix"].map(|key| finding[key].as_str().unwrap());
            format!("{what} {fix}").contains("its file system is read-only")
        });
        assert_eq!(read_only.count(), 3, "{said}");
        assert!(said.contains("export KENNEL_RUNTIME_DIR"), "{said}");
    }
}

#[test]
fn a_daemon_ends_after_its_linger_though_the_doctor_looks_at_it_again_and_again() {
    let ward = Ward::new();
    let mut command = ward.command(env!("CARGO_BIN_EXE_kennel"));
    command.args(["run", "--share", "always", "--linger", "2s", "--"]);
    let client = Client::begin(command.arg(bin("tk-server")));
    let listed = || ward.kennel(&["ps", "--json"]).stdout;
    assert!(listed().contains("\"daemon_pid\""), "{}", listed());
    drop(client);
    // Each look comes well before the linger is over. A look that counts as a client begins it anew.
    wait_for("the daemon is exiting", || {
        assert!(ward.findings("daemons").is_empty());
        (!listed().contains("\"daemon_pid\"")).then_some(())
    });
}

#[test]
fn a_broken_file_a_missing_program_and_a_kennel_that_is_gone_are_found() {
    let ward = Ward::new();
    write(&ward, "home/.cursor/mcp.json", "{\n  oops\n}");
    let gone = "{\"mcpServers\": {\"a\": {\"command\": \"/gone/kennel\", \"args\": [\"run\", \"--\", \"no-such-program-here\"]}}}";
    write(&ward, "home/.gemini/settings.json", gone);
    write(
        &ward,
        "home/.config/kennel/servers.toml",
        "[[server]]\nshare = \"always\"\n",
    );
    let words = |check: &str| {
        let found = ward.findings(check);
        found
            .iter()
            .map(|finding| finding["what"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join("\n")
    };
    let apps = words("apps");
    assert!(apps.contains("line 2, column 3"), "{apps}");
    assert!(apps.contains("/gone/kennel, which is missing"), "{apps}");
    assert!(words("commands").contains("no-such-program-here is not found"));
    assert!(words("servers.toml").contains("line 1"));
}

#[test]
fn a_command_that_is_not_found_is_shown_without_its_credentials() {
    let ward = Ward::new();
    let text = serde_json::json!({"mcpServers": {
        "a": {"command": "no-such-prog --token hunter2", "args": []},
        "b": {"command": "node", "args": ["/gone/x.js --token hunter2"]},
    }});
    write(&ward, "home/.cursor/mcp.json", &text.to_string());
    let found = serde_json::to_string(&ward.findings("commands")).unwrap();
    assert!(
        found.contains("no-such-prog --token … is not found"),
        "{found}"
    );
    assert!(!found.contains("hunter2"), "{found}");
}

#[test]
fn a_script_and_a_directory_that_are_gone_are_found() {
    let ward = Ward::new();
    let kennel = env!("CARGO_BIN_EXE_kennel");
    let text = serde_json::json!({"mcpServers": {
        "script": {"command": "sh", "args": ["-c", "x"]},
        "node": {"command": "env", "args": ["node", "/gone/node_modules/thing/index.js"]},
        "python": {"command": "env", "args": ["python3", "/gone/server.py"]},
        "cwd": {"command": kennel, "args": ["run", "--cwd", "/gone", "--", "sh"]},
        "filled": {"command": "${HOME}/gone", "args": ["/gone/data"]},
    }});
    write(&ward, "home/.cursor/mcp.json", &text.to_string());
    let found = ward.findings("commands");
    let mut told: Vec<&str> = found
        .iter()
        .map(|finding| {
            finding["what"]
                .as_str()
                .unwrap()
                .split(" is not")
                .next()
                .unwrap()
        })
        .collect();
    told.sort_unstable();
    let wanted = [
        "cwd: /gone",
        "node: /gone/node_modules/thing/index.js",
        "python: /gone/server.py",
    ];
    assert_eq!(told, wanted);
}

#[test]
fn a_variable_that_does_not_exist_is_found_and_a_misspelled_one_is_told_to_its_session() {
    let ward = Ward::new();
    let kennel = |words: &[&str], name: &str| {
        let mut command = ward.command(env!("CARGO_BIN_EXE_kennel"));
        run(command.args(words).env(name, "value-to-keep"))
    };
    let found = kennel(&["doctor"], "KENNEL_LINGR");
    assert_eq!(found.code(), Some(1), "{}", found.stdout);
    for words in [
        "KENNEL_LINGR is set",
        "if you meant KENNEL_LINGER, set that instead",
    ] {
        assert!(found.stdout.contains(words), "{words}: {}", found.stdout);
    }
    assert!(!found.stdout.contains("value-to-keep"), "{}", found.stdout);
    let server = ["run", "--share", "never", "--", "true"];
    let misspelled = kennel(&server, "KENNEL_LINGR").stderr;
    assert!(
        misspelled.contains("KENNEL_LINGR has no effect: did you mean KENNEL_LINGER?"),
        "{misspelled}"
    );
    let other = kennel(&server, "KENNEL_OF_ANOTHER_PROGRAM").stderr;
    assert!(!other.contains("KENNEL_OF_ANOTHER_PROGRAM"), "{other}");
}
