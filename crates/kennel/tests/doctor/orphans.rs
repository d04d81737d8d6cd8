//! Orphans that Kennel did not start: exactly those are found, and nobody else is touched.

use std::process::Stdio;

use kennel_sys::Signal;
use kennel_testkit::{Client, Rng, Subject, bin, count, skipped, tool, wait_for};
use serde_json::Value;

use crate::stage::{Family, Ward, session};

/// Nobody.
const NONE: [u32; 0] = [];
const IDLE: &[&str] = &["tk-idle", "1000"];

#[test]
fn a_server_whose_app_was_killed_is_found_with_the_evidence_and_ended() {
    let ward = Ward::new();
    let mut family = ward.family(&[], IDLE);
    assert_eq!(ward.orphans(), NONE, "its app lives");
    family.kill_app();
    let pid = family.child.pid();
    assert_eq!(ward.orphans(), [pid]);
    let told = ward.kennel(&["doctor"]);
    assert_eq!(told.code(), Some(1));
    for words in [
        "tk-idle 1000",
        "starter has exited",
        "write to its stdin",
        "read its stdout",
        "MB",
        "kennel reap --foreign",
    ] {
        assert!(told.stdout.contains(words), "{words}: {}", told.stdout);
    }

    let kept = ward.kennel(&["reap"]);
    assert_eq!(kept.code(), Some(0));
    assert!(
        kept.stdout.contains("1 orphan that kennel did not start"),
        "{}",
        kept.stdout
    );
    let dry = ward.kennel(&["reap", "--foreign", "--dry-run"]);
    assert_eq!(dry.code(), Some(0));
    assert!(dry.stdout.contains(&format!("pid {pid}")), "{}", dry.stdout);
    let unasked = ward.kennel(&["reap", "--foreign"]);
    assert_eq!(unasked.code(), Some(2), "nobody can be asked");
    let unasked = ward.kennel(&["reap", "--foreign", "--json"]);
    assert_eq!(unasked.code(), Some(2), "nobody can be asked");
    let told: Value = serde_json::from_str(&unasked.stdout).unwrap();
    assert_eq!(told["foreign"][0]["ended"], false);
    assert!(family.child.is_alive(), "none of these ends it");

    let ended = ward.kennel(&["reap", "--foreign", "--yes", "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(done["foreign"][0]["pid"], pid);
    assert_eq!(done["foreign"][0]["ended"], true);
    assert!(done["freed_bytes"].as_u64().unwrap() > 0);
    assert!(!family.child.is_alive());
    assert_eq!(ward.orphans(), NONE);
}

#[test]
fn one_that_ignores_sigterm_is_killed_and_a_launcher_goes_with_what_it_launched() {
    let ward = Ward::new();
    let roll = ward.scope.roll();
    let stubborn = bin("tk-stubborn");
    let words = [stubborn.to_str().unwrap(), roll.to_str().unwrap(), "stay"];
    let mut family = ward.family(&["launcher"], &words);
    let server = family.grandchild();
    wait_for("it ignores SIGTERM", || {
        (!ward.scope.signed().is_empty()).then_some(())
    });
    family.kill_app();
    assert_eq!(
        ward.orphans(),
        [family.child.pid()],
        "told once, by the launcher"
    );
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!family.child.is_alive() && !server.is_alive());
}

#[test]
fn what_is_not_of_this_ward_is_neither_found_nor_ended() {
    // What every test here relies on: the doctor is kept to the mark of its ward.
    let (ward, other) = (Ward::new(), Ward::new());
    let (mut ours, mut theirs) = (ward.family(&[], IDLE), other.family(&[], IDLE));
    ours.kill_app();
    theirs.kill_app();
    assert_eq!(ward.orphans(), [ours.child.pid()]);
    assert_eq!(other.orphans(), [theirs.child.pid()]);
    ward.kennel(&["reap", "--foreign", "--yes"]);
    assert!(!ours.child.is_alive());
    assert!(theirs.child.is_alive());
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn needs_root_an_orphan_of_another_user_is_shown_with_the_name_and_ended_only_with_all_users() {
    let ward = Ward::new();
    let own_words = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let idle = ward.copied_for_all(&bin("tk-idle"));
    let words = [&own_words[..], &[idle.as_str()]].concat();
    let (mut ours, mut theirs) = (ward.family(&[], IDLE), ward.family(&[], &words));
    wait_for("it runs as another user", || {
        let dir = format!("/proc/{}", theirs.child.pid());
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(dir).unwrap());
        (uid == 65534).then_some(())
    });
    ours.kill_app();
    theirs.kill_app();
    let pid = theirs.child.pid();
    let findings = ward.findings("orphans");
    let of_theirs = findings.iter().find(|finding| finding["pid"] == pid);
    let of_theirs = of_theirs.unwrap();
    assert_eq!(of_theirs["fix"], "kennel reap --foreign --all-users");
    let what = of_theirs["what"].as_str().unwrap();
    let named = what.contains("of user nobody") || what.contains("of uid 65534");
    assert!(named, "{what}");

    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains(&format!("another user's: {idle}")),
        "{}",
        ended.stdout
    );
    assert!(!ours.child.is_alive() && theirs.child.is_alive());
    let ended = ward.kennel(&["reap", "--foreign", "--all-users", "--yes", "--json"]);
    let done: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(done["foreign"][0]["pid"], pid);
    assert_eq!(done["other_users"].as_array().unwrap().len(), 0);
    assert!(!theirs.child.is_alive());
}

/// What becomes of a family, and whether its child is an orphan then.
const FATES: &[(&[&str], Fate, bool)] = &[
    (&[], Fate::AppKilled, true),
    (&["socket"], Fate::AppKilled, true),
    (&["launcher"], Fate::AppKilled, true),
    (&["launcher", "socket"], Fate::AppKilled, true),
    // Another process can still write to it: in doubt.
    (&["hold"], Fate::AppKilled, false),
    (&["socket", "hold"], Fate::AppKilled, false),
    (&["launcher", "socket", "hold"], Fate::AppKilled, false),
    (&[], Fate::Healthy, false),
    (&["socket"], Fate::Healthy, false),
    (&["launcher"], Fate::Healthy, false),
    // The app closed its stdin and waits for it: its own business.
    (&["eof"], Fate::Healthy, false),
    (&["eof", "socket"], Fate::Healthy, false),
    // Adopted, but the app is still there to talk to it.
    (&["launcher"], Fate::LauncherKilled, false),
    (&["launcher", "socket"], Fate::LauncherKilled, false),
];

#[derive(Debug, Clone, Copy)]
enum Fate {
    Healthy,
    AppKilled,
    LauncherKilled,
}

/// Someone of an arrangement.
struct Someone {
    family: Family,
    /// Who is looked at.
    process: Subject,
    orphan: bool,
    told: String,
}

fn someone(ward: &Ward, rng: &mut Rng) -> Someone {
    let (options, fate, orphan) = FATES[rng.below(FATES.len() as u64) as usize];
    let mut family = ward.family(options, IDLE);
    let grandchild = options.contains(&"launcher").then(|| family.grandchild());
    let mut process = family.child;
    match fate {
        Fate::Healthy => {}
        Fate::AppKilled => family.kill_app(),
        Fate::LauncherKilled => {
            process = grandchild.unwrap();
            family.child.signal(Signal::KILL).unwrap();
            wait_for("the launcher is gone", || {
                (!family.child.is_alive()).then_some(())
            });
        }
    }
    Someone {
        family,
        process,
        orphan,
        told: format!("{options:?} {fate:?}"),
    }
}

/// Daemons that have nothing to do with any of it.
fn daemons(ward: &Ward) -> Vec<Subject> {
    let file = ward.scope.path("daemon.log");
    let line = format!(
        // One without stdio, one that writes to a file, and a pipe between two that only have each other.
        "setsid tk-idle 1000 </dev/null >/dev/null & echo $!; \
         true | tk-idle 1000 >{} & echo $!; \
         tk-idle 1000 </dev/null | tk-idle 1000 >/dev/null & echo $!",
        file.display()
    );
    let mut shell = ward.command("sh");
    let shell = shell.args(["-c", &line]);
    let told = shell.stdin(Stdio::null()).stderr(Stdio::null()).output();
    let text = String::from_utf8(told.unwrap().stdout).unwrap();
    text.lines()
        .map(|pid| Subject::open(pid.parse().unwrap()).unwrap())
        .collect()
}

#[test]
fn in_any_arrangement_exactly_the_orphans_are_found_and_ended() {
    // The doctor looks twice, with a pause between: so several at once.
    const AT_ONCE: u32 = 5;
    std::thread::scope(|threads| {
        for first in 0..AT_ONCE {
            threads.spawn(move || {
                (first..count(100))
                    .step_by(AT_ONCE as usize)
                    .for_each(arrangement);
            });
        }
    });
}

fn arrangement(round: u32) {
    let mut rng = Rng::seeded(&format!("arrangement {round} of orphans"));
    let ward = Ward::new();
    let people: Vec<Someone> = (0..3 + rng.below(6))
        .map(|_| someone(&ward, &mut rng))
        .collect();
    let daemons = daemons(&ward);
    let mut session = session(&ward);
    let told: Vec<&str> = people.iter().map(|person| person.told.as_str()).collect();

    let orphans = people.iter().filter(|person| person.orphan);
    let mut expected: Vec<u32> = orphans.map(|person| person.process.pid()).collect();
    expected.sort_unstable();
    assert_eq!(ward.orphans(), expected, "round {round}: {told:?}");

    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "round {round}: {}", ended.stderr);
    for person in &people {
        let alive = person.process.is_alive();
        assert_eq!(alive, !person.orphan, "round {round}: {}", person.told);
        let _ = &person.family;
    }
    assert!(daemons.iter().all(Subject::is_alive), "round {round}");
    session.request("ping", serde_json::json!({}));
    assert_eq!(ward.orphans(), NONE, "round {round}");
}

#[test]
fn a_server_whose_stdin_another_process_holds_is_shown_and_not_offered() {
    let ward = Ward::new();
    for options in [&["hold"][..], &["socket", "hold"]] {
        let mut family = ward.family(options, IDLE);
        family.kill_app();
        let pid = family.child.pid();
        let told = ward.kennel(&["doctor"]);
        for words in [
            &format!("pid {pid}"),
            "perhaps an orphan",
            "read its stdout",
            "but: ",
        ] {
            assert!(told.stdout.contains(words), "{words}: {}", told.stdout);
        }
        let reaped = ward.kennel(&["reap", "--foreign", "--yes"]);
        let kill = format!("if it is not needed: kill {pid}");
        assert!(reaped.stdout.contains(&kill), "{}", reaped.stdout);
        assert!(family.child.is_alive());
        assert_eq!(ward.orphans(), NONE);
    }
}

/// A real server, and what became of its app.
struct Person {
    family: Family,
    killed: bool,
    /// Another process keeps its stdin open.
    held: bool,
}

#[test]
#[ignore = "needs installed servers: cargo xtask test"]
fn needs_testbed_a_real_server_is_an_orphan_with_its_pipe_held_and_without() {
    let ward = Ward::new();
    let bed = std::path::PathBuf::from(std::env::var_os("TESTKIT_BED").expect("the testbed"));
    let script = bed.join("npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js");
    let node = tool("node").unwrap();
    let words = [node.to_str().unwrap(), script.to_str().unwrap(), "stdio"];
    let mut people: Vec<Person> = Vec::new();
    for (options, killed) in [
        (&["hold"][..], true),
        (&["socket", "hold"], true),
        (&[], true),
        (&["socket"], true),
        (&[], false),
    ] {
        let mut family = ward.family(options, &words);
        wait_for("the server is up", || {
            let pid = family.child.pid();
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?.count();
            (threads > 4).then_some(())
        });
        if killed {
            family.kill_app();
        }
        let held = options.contains(&"hold");
        people.push(Person {
            family,
            killed,
            held,
        });
    }
    // One whose pipe is not held hears the end of its input, and may end by itself: what is left is what is found.
    wait_for("the doctor finds who is left", || {
        let left = |held: bool| {
            let meant = people
                .iter()
                .filter(|person| person.killed && person.held == held);
            let alive = meant.filter(|person| person.family.child.is_alive());
            let mut pids: Vec<u32> = alive.map(|person| person.family.child.pid()).collect();
            pids.sort_unstable();
            pids
        };
        (ward.orphans() == left(false) && ward.in_doubt() == left(true)).then_some(())
    });
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    for person in &people {
        let spared = !person.killed || person.held;
        assert_eq!(person.family.child.is_alive(), spared);
    }
}

/// The server of a session. It starts two detached services, then reads its input: `tk-idle 1001`, which nobody can talk to,
/// and a Python that adopts what its children leave behind.
const SERVER_OF_SERVICES: &str = r#"
setsid sh -c 'true | tk-idle 1001 2>/dev/null | true &'
setsid "$PYTHON" -c "$ADOPTER" </dev/null >/dev/null 2>&1 &
cat
"#;

/// Starts `tk-idle 1002`, which nobody can talk to, once the file `GO` is there: after the session ended, so that it is not on
/// record itself.
const ADOPTER: &str = "
import ctypes, os, subprocess, time
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
open(os.environ['READY'], 'w').close()
while not os.path.exists(os.environ['GO']): time.sleep(0.01)
subprocess.run(['setsid', 'sh', '-c', 'true | tk-idle 1002 | true &'])
time.sleep(1000)
";

#[test]
fn kept_services_and_what_is_below_them_are_no_orphans() {
    if tool("python3").is_none() {
        return skipped("python3 is not installed");
    }
    let ward = Ward::new();
    let (ready, go) = (ward.scope.path("ready"), ward.scope.path("go"));
    let mut command = ward.command(env!("CARGO_BIN_EXE_kennel"));
    command
        .args(["run", "--share", "never", "--detached", "keep"])
        .args(["--stop-after", "50ms,50ms", "--"])
        .args(["sh", "-c", SERVER_OF_SERVICES])
        .env("PYTHON", tool("python3").unwrap())
        .env("ADOPTER", ADOPTER)
        .env("READY", &ready)
        .env("GO", &go);
    let mut shim = Client::start(&mut command);
    let idles = |seconds: &str| {
        let is_it = |process: &Subject| {
            let words = process.command_line().unwrap_or_default();
            words == ["tk-idle", seconds]
        };
        wait_for(&format!("tk-idle {seconds}"), || {
            let all = ward.scope.survivors().into_iter();
            all.map(Subject::from).find(is_it)
        })
    };
    let service = idles("1001");
    wait_for("the adopter is ready", || ready.exists().then_some(()));
    shim.close();
    shim.wait();
    let records = || {
        let all = std::fs::read_dir(ward.scope.runtime_dir().join("trees")).unwrap();
        let paths = all.map(|entry| entry.unwrap().path());
        let is_kept = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap();
            name.to_str().unwrap().starts_with("kept-")
        };
        paths.filter(is_kept).collect::<Vec<_>>()
    };
    // The warden may end after the session.
    wait_for("only the services are left", || {
        (ward.scope.survivors().len() == 2).then_some(())
    });
    assert_eq!(records().len(), 2, "both are on record");
    std::fs::write(&go, "").unwrap();
    let below = idles("1002");

    assert_eq!(ward.orphans(), NONE);
    assert_eq!(ward.in_doubt(), NONE);
    let ended = ward.kennel(&["reap", "--foreign", "--yes"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(
        ended.stdout.contains("nothing was ended"),
        "{}",
        ended.stdout
    );
    assert!(service.is_alive() && below.is_alive());

    // Nothing but their records speaks for them, and for the one below an adopter that it may be supervised.
    for record in records() {
        std::fs::remove_file(record).unwrap();
    }
    assert_eq!(ward.orphans(), [service.pid()]);
    assert_eq!(ward.in_doubt(), [below.pid()]);
}
