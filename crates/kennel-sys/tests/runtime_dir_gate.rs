//! Rule 9, the gate: what is refused, what the refusal says, and that its fix works when it is pasted.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use kennel_sys::runtime_dir::{DirError, Kind, RuntimeDir};
use kennel_testkit::{Rng, Scope, bin, count};

/// A name that only proper quoting brings through a shell.
const NAME: &str = "kennel's \"own\" $HOME `dir` * \\";

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn make_dir(path: &Path, mode: u32) {
    std::fs::create_dir(path).expect("a fresh directory");
    set_mode(path, mode);
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("our own");
}

fn mode_of(path: &Path) -> u32 {
    let meta = path.symlink_metadata().expect("it is there");
    meta.permissions().mode() & 0o7777
}

/// The message ends with the fix; pasted into a shell, it makes `ensure` work.
fn fix_works(scope: &Scope, path: &Path, error: &DirError) {
    let message = error.to_string();
    let fix = error.fix().unwrap_or_else(|| panic!("no fix: {message}"));
    assert!(message.ends_with(&fix), "{message}");
    let pasted = scope.command("sh").arg("-c").arg(&fix).status();
    assert!(pasted.expect("a shell").success(), "{fix}");
    RuntimeDir::ensure(path).unwrap_or_else(|error| panic!("after {fix}: {error}"));
    assert_eq!(mode_of(path), 0o700);
}

#[test]
fn a_missing_directory_is_made_and_closed_to_others() {
    let scope = Scope::new("made");
    let path = scope.path(NAME);
    let dir = RuntimeDir::ensure(&path).unwrap();
    assert_eq!(dir.path(), path);
    assert_eq!(mode_of(&path), 0o700);
    assert!(dir.is_at_its_path());
    assert!(RuntimeDir::open(&path).unwrap().is_some());
    std::fs::rename(&path, scope.path("elsewhere")).unwrap();
    assert!(!dir.is_at_its_path());
}

#[test]
fn rule_9_a_symbolic_link_is_refused_wherever_it_leads() {
    let scope = Scope::new("link");
    let strict = scope.path("strict");
    make_dir(&strict, 0o700);
    std::fs::write(scope.path("file"), "").unwrap();
    for target in [
        strict.as_path(),
        &scope.path("nowhere"),
        &scope.path("file"),
    ] {
        let path = scope.path(NAME);
        symlink(target, &path).unwrap();
        let error = RuntimeDir::ensure(&path).unwrap_err();
        let DirError::Symlink {
            target: leads_to,
            owner,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((leads_to.as_path(), *owner), (target, uid()));
        let message = error.to_string();
        assert!(message.contains(&format!("uid {}", uid())), "{message}");
        assert!(message.contains(target.to_str().unwrap()), "{message}");
        assert!(
            RuntimeDir::open(&path).is_err(),
            "looking follows none either"
        );
        fix_works(&scope, &path, &error);
        std::fs::remove_dir(&path).unwrap();
    }
    assert!(!scope.path("nowhere").exists(), "created through a link");
    assert!(strict.exists(), "the fix took more than the link");
}

#[test]
fn a_final_slash_does_not_lead_through_a_link() {
    let scope = Scope::new("slash");
    make_dir(&scope.path("strict"), 0o700);
    symlink(scope.path("strict"), scope.path("link")).unwrap();
    for spelled in ["link/", "link/.", "link//./"] {
        let error = RuntimeDir::ensure(scope.path(spelled)).unwrap_err();
        assert!(
            matches!(error, DirError::Symlink { .. }),
            "{spelled}: {error}"
        );
    }
}

#[test]
fn rule_9_a_loose_directory_is_refused_and_never_tightened() {
    let scope = Scope::new("loose");
    for mode in [
        0o755, 0o750, 0o701, 0o710, 0o704, 0o777, 0o770, 0o722, 0o1777, 0o2770,
    ] {
        let path = scope.path(NAME);
        make_dir(&path, mode);
        let error = RuntimeDir::ensure(&path).unwrap_err();
        assert!(
            matches!(error, DirError::OpenToOthers { mode: said, .. } if said == mode),
            "{error}"
        );
        let message = error.to_string();
        assert!(message.contains(&format!("mode {mode:04o}")), "{message}");
        assert!(message.contains(&format!("uid {}", uid())), "{message}");
        assert_eq!(mode_of(&path), mode, "changed by looking at it");
        fix_works(&scope, &path, &error);
        std::fs::remove_dir(&path).unwrap();
    }
}

#[test]
fn what_others_could_have_planted_goes_with_the_fix_and_what_they_could_only_see_stays() {
    let scope = Scope::new("planted");
    for (mode, stays) in [(0o777, false), (0o720, false), (0o755, true)] {
        let path = scope.path("kennel-4711");
        make_dir(&path, mode);
        std::fs::write(path.join("entry"), "").unwrap();
        let error = RuntimeDir::ensure(&path).unwrap_err();
        fix_works(&scope, &path, &error);
        assert_eq!(path.join("entry").exists(), stays, "mode {mode:o}");
        std::fs::remove_dir_all(&path).unwrap();
    }
}

#[test]
fn the_fix_moves_nothing_into_a_link_that_was_planted_under_the_free_name() {
    let scope = Scope::new("planted");
    let (path, theirs) = (scope.path("kennel-4711"), scope.path("theirs"));
    make_dir(&path, 0o777);
    make_dir(&theirs, 0o700);
    std::fs::write(path.join("entry"), "").unwrap();
    let fix = RuntimeDir::ensure(&path).unwrap_err().fix().unwrap();
    symlink(&theirs, scope.path("kennel-4711.aside")).unwrap();
    let _ = scope.command("sh").arg("-c").arg(&fix).status().unwrap();
    assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 0, "{fix}");
    assert!(path.join("entry").exists(), "{fix}");
}

#[test]
fn no_fix_throws_away_what_is_plainly_not_kennels() {
    let scope = Scope::new("not-ours");
    for (name, mode) in [("documents", 0o777), ("kennel", 0o775), ("kennel", 0o755)] {
        let home = scope.path(name);
        make_dir(&home, mode);
        std::fs::write(home.join("thesis"), "years of work").unwrap();
        set_mode(&home.join("thesis"), 0o644);
        let error = RuntimeDir::ensure(&home).unwrap_err();
        assert!(matches!(error, DirError::OpenToOthers { .. }), "{error}");
        assert_eq!(error.fix(), None, "{error}");
        assert!(
            error.to_string().ends_with("choose another directory"),
            "{error}"
        );
        std::fs::remove_dir_all(&home).unwrap();
    }
    let diary = scope.path("diary");
    make_dir(&diary, 0o777);
    std::fs::write(diary.join("today"), "rain").unwrap();
    set_mode(&diary.join("today"), 0o600);
    let error = RuntimeDir::ensure(&diary).unwrap_err();
    fix_works(&scope, &diary, &error);
    assert!(scope.path("diary.aside/today").exists());

    let thesis = scope.path("thesis");
    std::fs::write(&thesis, "years of work").unwrap();
    let error = RuntimeDir::ensure(&thesis).unwrap_err();
    fix_works(&scope, &thesis, &error);
    let aside = std::fs::read_to_string(scope.path("thesis.aside")).unwrap();
    assert_eq!(aside, "years of work");
}

#[test]
fn rule_9_what_is_no_directory_is_refused() {
    let scope = Scope::new("file");
    let path = scope.path(NAME);
    let make: [(Kind, &dyn Fn()); 4] = [
        (Kind::File, &|| std::fs::write(&path, "").unwrap()),
        (Kind::File, &|| std::fs::write(&path, "content").unwrap()),
        (Kind::Channel, &|| drop(UnixListener::bind(&path).unwrap())),
        (Kind::Channel, &|| {
            let made = scope.command("mkfifo").arg(&path).status().unwrap();
            assert!(made.success());
        }),
    ];
    for (expected, make) in make {
        make();
        let error = RuntimeDir::ensure(&path).unwrap_err();
        let DirError::NotADirectory { kind, owner, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((kind, owner), (expected, uid()));
        assert!(
            error.to_string().contains(&format!("uid {}", uid())),
            "{error}"
        );
        fix_works(&scope, &path, &error);
        std::fs::remove_dir(&path).unwrap();
    }
}

#[test]
fn a_directory_that_shuts_its_owner_out_is_refused_with_a_fix() {
    let scope = Scope::new("shut");
    for mode in [0o000, 0o500, 0o600] {
        let path = scope.path(NAME);
        make_dir(&path, mode);
        let error = RuntimeDir::ensure(&path).unwrap_err();
        assert!(matches!(error, DirError::ClosedToOwner { .. }), "{error}");
        assert!(
            error.to_string().contains(&format!("mode {mode:04o}")),
            "{error}"
        );
        assert_eq!(mode_of(&path), mode);
        fix_works(&scope, &path, &error);
        std::fs::remove_dir(&path).unwrap();
    }
}

#[test]
fn a_directory_whose_maker_is_about_to_grant_itself_access_is_waited_for() {
    let scope = Scope::new("settling");
    let path = scope.path(NAME);
    make_dir(&path, 0o000);
    std::thread::scope(|threads| {
        let other = threads.spawn(|| RuntimeDir::ensure(&path));
        // Time enough for the other to look and to give up, if it did not wait.
        let start = Instant::now();
        while !other.is_finished() && start.elapsed() < Duration::from_millis(20) {
            std::thread::yield_now();
        }
        set_mode(&path, 0o700);
        other.join().unwrap().unwrap();
    });
}

#[test]
fn a_path_that_is_no_text_is_fixed_too() {
    let scope = Scope::new("bytes");
    let path = scope.path(OsStr::from_bytes(b"kennel caf\xe9'\xff"));
    make_dir(&path, 0o755);
    let error = RuntimeDir::ensure(&path).unwrap_err();
    let fix = error.fix().unwrap();
    assert!(
        scope
            .command("sh")
            .args(["-c", &fix])
            .status()
            .unwrap()
            .success()
    );
    RuntimeDir::ensure(&path).unwrap();
}

#[test]
fn a_missing_parent_is_named_and_can_be_made() {
    let scope = Scope::new("parent");
    let path = scope.path("not there").join("run");
    let error = RuntimeDir::ensure(&path).unwrap_err();
    assert!(matches!(error, DirError::Io { .. }), "{error}");
    fix_works(&scope, &path, &error);
}

#[test]
fn a_subdirectory_passes_the_same_gate() {
    let scope = Scope::new("sub");
    let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    assert!(dir.existing_subdir("locks").unwrap().is_none());
    let sub = dir.subdir("locks").unwrap();
    assert_eq!(sub.path(), dir.path().join("locks"));
    assert_eq!(mode_of(sub.path()), 0o700);
    assert!(dir.existing_subdir("locks").unwrap().is_some());

    set_mode(sub.path(), 0o777);
    let error = dir.subdir("locks").unwrap_err();
    assert!(matches!(error, DirError::OpenToOthers { .. }), "{error}");
    fix_works(&scope, sub.path(), &error);

    symlink(sub.path(), dir.path().join("link")).unwrap();
    let error = dir.existing_subdir("link").unwrap_err();
    assert!(matches!(error, DirError::Symlink { .. }), "{error}");

    for name in ["", ".", "..", "a/b", "/etc"] {
        let error = dir.subdir(name).unwrap_err();
        assert!(
            matches!(error, DirError::BadName { .. }),
            "{name:?}: {error}"
        );
    }
}

#[test]
fn a_subdirectory_is_made_where_the_judged_directory_is_whatever_its_path_leads_to() {
    let scope = Scope::new("moved");
    let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    std::fs::rename(dir.path(), scope.path("moved")).unwrap();
    make_dir(&scope.path("planted"), 0o777);
    symlink(scope.path("planted"), dir.path()).unwrap();
    dir.subdir("locks").unwrap();
    dir.write_whole("record", b"ours").unwrap();
    assert!(scope.path("moved/locks").is_dir());
    assert!(scope.path("moved/record").is_file());
    assert_eq!(std::fs::read_dir(scope.path("planted")).unwrap().count(), 0);
}

#[test]
fn any_umask_makes_a_directory_its_owner_can_use() {
    let scope = Scope::new("umask");
    for umask in ["0177", "0777", "0700", "0077", "0022", "0000"] {
        let path = scope.path(format!("run-{umask}"));
        let helper = bin("tk-dir");
        let output = scope
            .command(helper)
            .args(["--umask", umask, "fill"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success(), "umask {umask}: {output:?}");
        assert_eq!(mode_of(&path), 0o700, "umask {umask}");
        assert_eq!(mode_of(&path.join("sub")), 0o700, "umask {umask}");
        for file in ["file", "lock"] {
            let mode = mode_of(&path.join("sub").join(file));
            assert_eq!(mode, 0o600, "umask {umask}: {file}");
        }
    }
}

#[test]
fn two_who_make_it_at_once_both_get_it() {
    let scope = Scope::new("race");
    for round in 0..count(200) {
        let path = scope.path(format!("run-{round}"));
        let umask = ["0177", "0777"][round as usize % 2];
        let mut racers = Vec::new();
        for _ in 0..3 {
            let mut racer = scope
                .command(bin("tk-dir"))
                .args(["--umask", umask, "--wait", "ensure"])
                .arg(&path)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let mut said = String::new();
            let mut stdout = BufReader::new(racer.stdout.take().unwrap());
            stdout.read_line(&mut said).unwrap();
            assert_eq!(said, "waiting\n");
            racers.push((racer, stdout));
        }
        for (racer, _) in &mut racers {
            drop(racer.stdin.take());
        }
        for (racer, _stdout) in racers {
            let output = racer.wait_with_output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "round {round}: {stderr}");
        }
        assert_eq!(mode_of(&path), 0o700);
    }
}

#[test]
fn a_directory_is_had_though_others_remove_it_while_it_is_empty() {
    let scope = Scope::new("removed");
    let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    std::thread::scope(|threads| {
        let making = threads.spawn(|| {
            for _ in 0..count(2_000) {
                dir.subdir("sub").unwrap();
            }
        });
        let mut rng = Rng::seeded("remover");
        while !making.is_finished() {
            dir.remove_subdir_if_empty("sub").unwrap();
            // Not in step with the other, which would then never have it.
            let pause = rng.duration_below(Duration::from_micros(200));
            let start = Instant::now();
            while start.elapsed() < pause {
                std::hint::spin_loop();
            }
        }
    });
}

#[test]
fn looking_creates_nothing() {
    let scope = Scope::new("looking");
    let dir = RuntimeDir::ensure(scope.runtime_dir()).unwrap();
    let before = tree(scope.dir());
    assert!(RuntimeDir::open(scope.path("missing")).unwrap().is_none());
    assert!(dir.existing_subdir("missing").unwrap().is_none());
    assert!(dir.read_small("missing", 10).unwrap().is_none());
    assert!(!dir.unlink("missing").unwrap());
    assert!(!dir.remove_subdir_if_empty("missing").unwrap());
    dir.socket_path("missing").unwrap();
    dir.hold().unwrap();
    assert!(!kennel_sys::lock::probe(&dir, "missing").is_held());
    let missing = scope.path("missing/lock");
    assert!(!kennel_sys::lock::probe_path(&missing).is_held());
    assert!(!kennel_sys::lock::legacy::probe(&missing).is_held());
    assert_eq!(tree(scope.dir()), before);
}

fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory of ours") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found.sort();
    found
}
