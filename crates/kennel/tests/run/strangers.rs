//! Only this user (rule 9): what another one can see, end and plant.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

mod needs_root {
    use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};
    use std::os::unix::process::CommandExt;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use kennel_sys::process::ProcessRef;
    use kennel_testkit::{Client, Scope, bin, run, wait_for};
    use serde_json::json;

    use crate::stage::{kennel, key_dir, log, serves, shared, the_daemon};

    const STRANGER: u32 = 65534;

    fn open(path: &Path, mode: u32) {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    /// A program that the stranger can run, started as the stranger.
    fn as_stranger(scope: &Scope, program: &Path) -> Command {
        let copy = scope.path(program.file_name().unwrap());
        if !copy.exists() {
            std::fs::copy(program, &copy).unwrap();
            open(&copy, 0o755);
        }
        // Everyone may make something beside what is ours, as in /tmp.
        open(scope.dir(), 0o1777);
        let mut command = scope.command(copy);
        command.uid(STRANGER).gid(STRANGER).current_dir("/");
        command
    }

    fn strange_kennel(scope: &Scope, words: &[&str]) -> Command {
        let mut command = as_stranger(scope, Path::new(env!("CARGO_BIN_EXE_kennel")));
        command.args(words);
        command
    }

    /// A part of this file, played by the stranger.
    fn strange_part(scope: &Scope, name: &str, socket: &Path) -> Command {
        let mut command = as_stranger(scope, &std::env::current_exe().unwrap());
        let name = format!("strangers::{name}");
        command
            .args(["--exact", &name, "--ignored", "--nocapture"])
            .env("TESTKIT_SOCKET", socket);
        command
    }

    /// The warden is the second process, and may start no third one. That says nothing about the server.
    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_session_whose_server_finds_no_room_for_its_process_has_an_error_and_goes_on() {
        const NOBODY_ELSE: u32 = 54_321;
        let scope = Scope::new("few-processes");
        let mut command = as_stranger(&scope, Path::new("/bin/sh"));
        let place = scope.path("theirs");
        std::fs::create_dir(&place).unwrap();
        chown(&place, Some(NOBODY_ELSE), Some(NOBODY_ELSE)).unwrap();
        open(&place, 0o700);
        for program in [Path::new(env!("CARGO_BIN_EXE_kennel")), &bin("tk-server")] {
            let copy = scope.path(program.file_name().unwrap());
            std::fs::copy(program, &copy).unwrap();
            open(&copy, 0o755);
        }
        let script =
            "ulimit -u 2 2>/dev/null || ulimit -p 2; exec \"$0\" run --share never -- \"$1\"";
        command
            .args(["-c", script])
            .args([scope.path("kennel"), scope.path("tk-server")])
            .uid(NOBODY_ELSE)
            .gid(NOBODY_ELSE)
            .env("KENNEL_RUNTIME_DIR", &place);
        let mut client = Client::start(&mut command);
        let id = client.ask_to_initialize();
        let words = client.answer(id)["error"]["message"].to_string();
        assert!(words.contains("cannot be started"), "{words}");
        let again = client.request("echo", json!({}));
        assert!(again["error"].is_object(), "{again}");
        client.close();
        assert_eq!(client.wait().code(), Some(0));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn another_user_can_neither_connect_nor_list_nor_stop_nor_read_the_log() {
        const SECRET: &str = "c4n4ry";
        let scope = Scope::new("stranger");
        let mut client = Client::begin(&mut shared(&scope));
        client.request("say", json!({"stderr": SECRET}));
        let (daemon, place) = (the_daemon(&scope), key_dir(&scope));
        let key = place.file_name().unwrap().to_str().unwrap();
        let sockets = std::fs::read_dir(&place).unwrap();
        let mut files = sockets.map(|entry| entry.unwrap().path());
        let socket = files.find(|path| path.extension().is_some_and(|end| end == "sock"));
        let socket = socket.unwrap();
        for opened in [false, true] {
            if opened {
                // As bad as it can get: what is left is what Kennel itself looks at.
                for dir in place.ancestors().take(3) {
                    open(dir, 0o755);
                }
                for file in std::fs::read_dir(&place).unwrap() {
                    open(&file.unwrap().path(), 0o666);
                }
            }
            for words in [
                &["ps", "--json"][..],
                &["ps"],
                &["stop", "--all"],
                &["stop", key],
                &["logs", key],
                &["logs", "tk-server"],
            ] {
                let ended = run(&mut strange_kennel(&scope, words));
                assert_eq!(ended.code(), Some(1), "{words:?}: {}", ended.stdout);
                assert_eq!(ended.stdout, "", "{words:?}");
                assert!(!ended.stderr.contains(SECRET), "{words:?}");
            }
            let ended = run(&mut strange_part(&scope, "a_caller", &socket));
            let expected = if opened { "heard nothing" } else { "shut out" };
            assert!(ended.stdout.contains(expected), "{}", ended.stdout);
            assert!(daemon.is_alive());
            serves(&mut client);
        }
        assert!(log(&scope).contains("of uid 65534: not our user"));
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_session_of_another_user_has_nothing_of_ours() {
        let scope = Scope::new("strange-session");
        let mut ours = Client::begin(&mut shared(&scope));
        serves(&mut ours);
        let before = log(&scope);
        let server = as_stranger(&scope, &bin("tk-server"));
        let words = ["run", "--share", "always", "--"];
        let mut theirs = strange_kennel(&scope, &words);
        let mut theirs = Client::begin(theirs.arg(server.get_program()));
        serves(&mut theirs);
        theirs.close();
        let said = theirs.wait().stderr;
        assert!(said.contains("of uid 0, not of uid 65534"), "{said}");
        assert_eq!(log(&scope), before, "our daemon has not heard of it");
        serves(&mut ours);
    }

    /// Where a planted socket lies, seen from the runtime directory that our shim uses.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Planted {
        /// The runtime directory itself is theirs, in a place where everyone may make one.
        Place,
        /// A link to it is.
        Link,
        /// All daemons' directory.
        Daemons,
        /// The directory of our key.
        Key,
        /// Only the socket, with a record that speaks for it.
        Socket,
        /// The socket and the record.
        Record,
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn a_shim_does_not_talk_to_a_socket_that_another_user_planted() {
        for planted in [
            Planted::Place,
            Planted::Link,
            Planted::Daemons,
            Planted::Key,
            Planted::Socket,
            Planted::Record,
        ] {
            let scope = Scope::new("planted");
            let key = a_key(&scope);
            scope.remove_runtime_dir();
            let place = match planted {
                Planted::Link => scope.path("theirs"),
                _ => scope.runtime_dir(),
            };
            let dir = place.join("daemons").join(&key);
            std::fs::create_dir_all(&dir).unwrap();
            for path in dir.ancestors().take(3) {
                open(path, 0o700);
                chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
            }
            let socket = dir.join("planted.sock");
            let mut impostor = Client::start(&mut strange_part(&scope, "an_impostor", &socket));
            wait_for("it listens", || socket.exists().then_some(()));
            plant_record(&dir, impostor.pid());
            let ours = |path: &Path| chown(path, Some(0), Some(0)).unwrap();
            match planted {
                Planted::Place => {}
                Planted::Link => {
                    symlink(&place, scope.runtime_dir()).unwrap();
                    lchown(scope.runtime_dir(), Some(STRANGER), Some(STRANGER)).unwrap();
                }
                Planted::Daemons => ours(&place),
                Planted::Key => dir.ancestors().take(3).skip(1).for_each(ours),
                Planted::Record => dir.ancestors().take(3).for_each(ours),
                Planted::Socket => {
                    dir.ancestors().take(3).for_each(ours);
                    ours(&dir.join("daemon.json"));
                }
            }

            let mut client = Client::begin(&mut shared(&scope));
            serves(&mut client);
            client.close();
            let said = client.wait().stderr;
            let refused = said.contains("using a dedicated server");
            let stepped_over = matches!(planted, Planted::Socket | Planted::Record);
            assert_eq!(refused, !stepped_over, "{planted:?}: {said}");

            impostor.kill();
            let heard = impostor.wait().stdout;
            assert!(!heard.contains("heard"), "{planted:?}: {heard}");
        }
    }

    /// The key of our session, wherever it meets others.
    fn a_key(scope: &Scope) -> String {
        let mut client = Client::begin(&mut shared(scope));
        serves(&mut client);
        let place = key_dir(scope);
        client.close();
        client.wait();
        assert_eq!(run(kennel(scope).args(["stop", "--all"])).code(), Some(0));
        place.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// What a daemon would have written down.
    fn plant_record(dir: &Path, pid: u32) {
        let identity = *ProcessRef::open(pid).unwrap().identity();
        let record = json!({
            "identity": identity.to_string(), "generation": "planted", "version": "0", "since": 0,
            "name": "tk-server", "command": [], "cwd": "/",
        });
        let path: PathBuf = dir.join("daemon.json");
        std::fs::write(&path, record.to_string()).unwrap();
        open(&path, 0o600);
        chown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
}

#[test]
#[ignore = "a part of another test: somebody else's client"]
fn a_caller() {
    let path = std::env::var_os("TESTKIT_SOCKET").expect("started by another test");
    let Ok(mut stream) = UnixStream::connect(path) else {
        println!("shut out");
        return;
    };
    let _ = stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n");
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    let mut heard = Vec::new();
    let _ = stream.read_to_end(&mut heard);
    println!("heard {}", if heard.is_empty() { "nothing" } else { "it" });
}

#[test]
#[ignore = "a part of another test: somebody else's daemon"]
fn an_impostor() {
    let path = std::env::var_os("TESTKIT_SOCKET").expect("started by another test");
    let listener = UnixListener::bind(path).unwrap();
    for caller in listener.incoming() {
        let mut heard = [0; 100];
        if let Ok(count @ 1..) = caller.unwrap().read(&mut heard) {
            println!("heard {:?}", String::from_utf8_lossy(&heard[..count]));
        }
    }
}
