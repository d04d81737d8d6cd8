//! Rule 8, the meeting place: where it is, who may sit in it, and what real processes of any environment find.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kennel_sys::runtime_dir::{DirError, RuntimeDir, RuntimeDirPaths};
use kennel_testkit::{Scope, bin};

const NOBODY: u32 = 65534;
/// What is pasted from a message reaches what is started from the same shell.
const PASTED: &str = "eval \"$1\"; shift; exec \"$@\"";

fn uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn make_dir(path: &Path, mode: u32) {
    std::fs::create_dir(path).expect("a fresh directory");
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).expect("our own directory");
}

fn mode_of(path: &Path) -> u32 {
    let meta = path.symlink_metadata().expect("it is there");
    meta.permissions().mode() & 0o7777
}

/// A directory that belongs to somebody else.
fn foreign(scope: &Scope) -> PathBuf {
    if uid() != 0 {
        return PathBuf::from("/usr");
    }
    let path = scope.path("kennel-foreign");
    make_dir(&path, 0o700);
    chown(&path, Some(NOBODY), Some(NOBODY)).expect("root may give away");
    path
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

fn complained(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr)
        .trim_end()
        .to_owned()
}

#[test]
fn a_squatted_place_is_stepped_aside_from() {
    let scope = Scope::new("squatted");
    let aside = scope.path("aside");
    let place = RuntimeDirPaths::new(foreign(&scope), &aside);
    assert!(place.find().unwrap().is_none(), "nobody met there yet");
    assert!(!aside.exists(), "created by looking");
    assert_eq!(place.ensure().unwrap().path(), aside);
    assert_eq!(mode_of(&aside), 0o700);
    assert_eq!(place.find().unwrap().unwrap().path(), aside);
}

#[test]
fn where_stepping_aside_fails_the_squatter_is_the_error() {
    let scope = Scope::new("no-aside");
    let usual = foreign(&scope);
    let aside = scope.path("not-logged-in").join("kennel");
    let place = RuntimeDirPaths::new(&usual, aside);
    for error in [place.ensure().unwrap_err(), place.find().unwrap_err()] {
        let DirError::WrongOwner {
            path, owner, ours, ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!((path, *ours), (&usual, uid()));
        let message = error.to_string();
        for word in [format!("uid {owner}"), format!("uid {ours}")] {
            assert!(message.contains(&word), "{message}");
        }
    }
}

#[test]
fn rule_8_what_is_ours_and_wrong_is_never_stepped_aside_from() {
    let scope = Scope::new("ours");
    let aside = scope.path("aside");
    let (loose, file, link) = (scope.path("loose"), scope.path("file"), scope.path("link"));
    make_dir(&loose, 0o755);
    std::fs::write(&file, "").unwrap();
    symlink(&loose, &link).unwrap();
    for usual in [loose, file, link] {
        let place = RuntimeDirPaths::new(usual, &aside);
        let error = place.ensure().unwrap_err();
        assert!(!matches!(error, DirError::WrongOwner { .. }), "{error}");
        assert!(place.find().is_err());
        assert!(!aside.exists(), "{error}");
    }
}

#[test]
fn the_variable_moves_the_place_for_real_processes() {
    let scope = Scope::new("override");
    let find = || said(&scope.command(bin("tk-dir")).arg("find").output().unwrap());
    assert_eq!(find(), "nothing there");
    assert!(!scope.runtime_dir().exists(), "created by looking");
    let made = scope
        .command(bin("tk-dir"))
        .arg("of-user")
        .output()
        .unwrap();
    assert_eq!(said(&made), scope.runtime_dir().to_str().unwrap());
    assert_eq!(mode_of(&scope.runtime_dir()), 0o700);
    assert_eq!(find(), scope.runtime_dir().to_str().unwrap());

    let relative = scope
        .command(bin("tk-dir"))
        .arg("of-user")
        .env("KENNEL_RUNTIME_DIR", "run")
        .current_dir(scope.dir())
        .output()
        .unwrap();
    assert!(!relative.status.success());
    let complaint = complained(&relative);
    assert!(
        complaint.contains("\"run\", not an absolute path"),
        "{complaint}"
    );
    assert!(
        complaint.ends_with("unset KENNEL_RUNTIME_DIR"),
        "{complaint}"
    );
}

#[test]
fn what_a_person_named_and_kennel_never_made_is_not_removed_by_the_fix() {
    let scope = Scope::new("a-persons-own");
    let (pipe, link) = (scope.path("pipe"), scope.path("link"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    symlink(scope.dir(), &link).unwrap();
    for path in [&pipe, &link] {
        let refused = scope
            .command(bin("tk-dir"))
            .arg("of-user")
            .env("KENNEL_RUNTIME_DIR", path)
            .output()
            .unwrap();
        assert!(!refused.status.success(), "{refused:?}");
        let complaint = complained(&refused);
        assert!(
            complaint.ends_with("unset KENNEL_RUNTIME_DIR"),
            "{complaint}"
        );
    }
}

/// Runs `tk-dir of-user` at `path`, which is refused, and again in a shell where its fix was pasted.
fn pasted(scope: &Scope, path: &Path) -> (Output, Output) {
    let helper = bin("tk-dir");
    let refused = scope
        .command(&helper)
        .arg("of-user")
        .env("KENNEL_RUNTIME_DIR", path)
        .output()
        .expect("it runs");
    assert!(!refused.status.success(), "{refused:?}");
    let fix = said(&refused);
    assert!(complained(&refused).ends_with(&fix), "{refused:?}");
    let fixed = scope
        .command("sh")
        .args(["-c", PASTED, "sh", &fix])
        .arg(&helper)
        .arg("of-user")
        .env("KENNEL_RUNTIME_DIR", path)
        .output()
        .expect("it runs");
    assert!(fixed.status.success(), "{fix}: {fixed:?}");
    (refused, fixed)
}

#[test]
fn a_variable_that_names_anothers_directory_is_answered_with_a_place_of_ones_own() {
    let scope = Scope::new("their-dir");
    // Of a name that is not Kennel's: nobody should be told to move it.
    let theirs = if uid() == 0 {
        let theirs = scope.path("theirs");
        std::fs::rename(foreign(&scope), &theirs).unwrap();
        theirs
    } else {
        PathBuf::from("/usr")
    };
    let (refused, fixed) = pasted(&scope, &theirs);
    assert!(!complained(&refused).contains("mv "), "{refused:?}");
    let own = scope.path("home/.kennel-run");
    assert_eq!(said(&fixed), own.to_str().unwrap());
    assert_eq!(mode_of(&own), 0o700);
}

#[test]
fn a_variable_that_names_a_directory_of_other_things_is_answered_the_same() {
    let scope = Scope::new("documents");
    let documents = scope.path("documents");
    make_dir(&documents, 0o777);
    std::fs::write(documents.join("thesis"), "years of work").unwrap();
    let readable = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(documents.join("thesis"), readable).unwrap();
    let (_, fixed) = pasted(&scope, &documents);
    assert_eq!(
        said(&fixed),
        scope.path("home/.kennel-run").to_str().unwrap()
    );
    assert!(documents.join("thesis").exists());
}

#[test]
fn a_socket_path_that_is_too_long_is_told_before_anything_is_bound() {
    let scope = Scope::new("long");
    let base = scope.path("x".repeat(95 - scope.dir().as_os_str().len()));
    let dir = RuntimeDir::ensure(&base).unwrap();
    let room = 107 - base.as_os_str().len() - 1;
    let fits = dir.socket_path("s".repeat(room)).unwrap();
    std::os::unix::net::UnixListener::bind(fits).unwrap();
    let error = dir.socket_path("s".repeat(room + 1)).unwrap_err();
    assert!(
        matches!(
            error,
            DirError::TooLong {
                length: 108,
                limit: 107,
                ..
            }
        ),
        "{error}"
    );

    let place = RuntimeDirPaths::of(uid(), Some(base.as_os_str())).unwrap();
    let sub = place.ensure().unwrap().subdir("sub").unwrap();
    let error = sub.socket_path("s".repeat(room)).unwrap_err();
    let message = error.to_string();
    for word in ["111 bytes", "allows 107"] {
        assert!(message.contains(word), "{message}");
    }
    let fix = "export KENNEL_RUNTIME_DIR=\"$HOME/.kennel-run\"";
    assert!(message.ends_with(fix), "{message}");
}

fn xdg(scope: &Scope, runtime: Option<&Path>) -> Output {
    let mut command = scope.command(bin("tk-dir"));
    command.args(["xdg", "notes"]);
    if let Some(runtime) = runtime {
        command.env("XDG_RUNTIME_DIR", runtime);
    }
    command.output().expect("it runs")
}

#[test]
fn xdg_is_used_where_it_passes_the_gate() {
    let scope = Scope::new("xdg");
    let runtime = scope.path("xdg");
    make_dir(&runtime, 0o700);
    let output = xdg(&scope, Some(&runtime));
    assert!(output.status.success(), "{output:?}");
    assert_eq!(said(&output), runtime.join("notes").to_str().unwrap());
    assert_eq!(mode_of(&runtime.join("notes")), 0o700);
}

#[test]
fn lesson_11_xdg_falls_through_silently_to_a_directory_of_the_uid() {
    let scope = Scope::new("xdg-not");
    let (strict, loose) = (scope.path("strict"), scope.path("loose"));
    make_dir(&strict, 0o700);
    make_dir(&loose, 0o750);
    let (link, file) = (scope.path("link"), scope.path("file"));
    symlink(&strict, &link).unwrap();
    std::fs::write(&file, "").unwrap();
    let theirs = foreign(&scope);
    let (missing, relative) = (scope.path("missing"), PathBuf::from("strict"));
    let wrong = [&link, &loose, &theirs, &missing, &file, &relative];
    let wrong = wrong.into_iter().map(|path| Some(path.as_path()));
    for runtime in wrong.chain([None, Some(Path::new(""))]) {
        let output = xdg(&scope, runtime);
        assert!(output.status.success(), "{runtime:?}: {output:?}");
        assert_eq!(complained(&output), "", "{runtime:?}");
        let fallback = scope.path(format!("notes-{}", uid()));
        assert_eq!(said(&output), fallback.to_str().unwrap(), "{runtime:?}");
        assert_eq!(mode_of(&fallback), 0o700, "{runtime:?}");
        std::fs::remove_dir(&fallback).unwrap();
    }
    assert_eq!(
        std::fs::read_dir(&strict).unwrap().count(),
        0,
        "used through a link"
    );
}

#[test]
fn an_xdg_directory_of_ours_that_is_wrong_is_an_error() {
    let scope = Scope::new("xdg-wrong");
    let runtime = scope.path("xdg");
    make_dir(&runtime, 0o700);
    make_dir(&runtime.join("notes"), 0o755);
    let output = xdg(&scope, Some(&runtime));
    assert!(!output.status.success());
    assert!(complained(&output).contains("mode 0755"), "{output:?}");
    for app in ["", "a/b", ".."] {
        let output = scope
            .command(bin("tk-dir"))
            .args(["xdg", app])
            .output()
            .unwrap();
        let complaint = complained(&output);
        assert!(
            complaint.contains("cannot be the name"),
            "{app:?}: {complaint}"
        );
    }
}

/// What another user's directories look like to root and to nobody.
mod needs_root {
    use super::*;

    /// A place that everybody may enter, with the helper in it.
    struct Public {
        scope: Scope,
        helper: PathBuf,
        home: PathBuf,
    }

    impl Public {
        fn new(label: &str) -> Public {
            let scope = Scope::new(label);
            let open = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(scope.dir(), open).expect("our own");
            // By another process: one of ours that forks meanwhile would keep the copy busy.
            let helper = scope.path("tk-dir");
            let copied = scope.command("cp").arg(bin("tk-dir")).arg(&helper).status();
            assert!(copied.expect("cp").success());
            let home = scope.path("nobody");
            make_dir(&home, 0o700);
            chown(&home, Some(NOBODY), Some(NOBODY)).expect("root may give away");
            Public {
                scope,
                helper,
                home,
            }
        }

        fn as_nobody(&self, program: impl AsRef<std::ffi::OsStr>, runtime: &Path) -> Command {
            let mut command = self.scope.command(program);
            command
                .uid(NOBODY)
                .gid(NOBODY)
                .env("HOME", &self.home)
                .env("KENNEL_RUNTIME_DIR", runtime)
                .current_dir("/");
            command
        }

        /// Refused as nobody, then with the fix pasted by nobody.
        fn pasted_by_nobody(&self, runtime: &Path) -> (Output, Output) {
            let refused = self
                .as_nobody(&self.helper, runtime)
                .arg("of-user")
                .output()
                .expect("it runs");
            assert!(!refused.status.success(), "{refused:?}");
            let fix = said(&refused);
            assert!(complained(&refused).ends_with(&fix), "{refused:?}");
            let fixed = self
                .as_nobody("sh", runtime)
                .args(["-c", PASTED, "sh", &fix])
                .arg(&self.helper)
                .arg("of-user")
                .output()
                .expect("it runs");
            assert!(fixed.status.success(), "{fix}: {fixed:?}");
            (refused, fixed)
        }
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn root_moves_anothers_directory_aside_and_loses_nothing() {
        let scope = Scope::new("root");
        let path = foreign(&scope);
        std::fs::write(path.join("theirs"), "").unwrap();
        let error = RuntimeDir::ensure(&path).unwrap_err();
        let message = error.to_string();
        assert!(message.contains("uid 65534"), "{message}");
        assert!(message.contains("uid 0 "), "{message}");
        let fix = error.fix().unwrap();
        assert!(message.ends_with(&fix), "{message}");
        assert!(
            scope
                .command("sh")
                .args(["-c", &fix])
                .status()
                .unwrap()
                .success()
        );
        RuntimeDir::ensure(&path).unwrap();
        assert!(scope.path("kennel-foreign.foreign/theirs").exists());
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn in_a_sticky_directory_nobody_is_told_to_ask_or_to_go_elsewhere() {
        let public = Public::new("sticky");
        let tmp = public.scope.path("tmp");
        make_dir(&tmp, 0o1777);
        let squatted = tmp.join("kennel-65534");
        for kind in ["directory", "symbolic link", "file"] {
            match kind {
                "directory" => make_dir(&squatted, 0o700),
                "file" => std::fs::write(&squatted, "").unwrap(),
                _ => symlink(&public.home, &squatted).unwrap(),
            }
            let (refused, fixed) = public.pasted_by_nobody(&squatted);
            let complaint = complained(&refused);
            for word in [
                format!("is a {kind} of uid 0"),
                "not of uid 65534".to_owned(),
                format!("sudo mv -T -- '{}' ", squatted.display()),
            ] {
                assert!(complaint.contains(&word), "{complaint}");
            }
            let own = public.home.join(".kennel-run");
            assert_eq!(said(&fixed), own.to_str().unwrap());
            assert!(squatted.symlink_metadata().is_ok(), "touched");
            std::fs::remove_dir(&own).unwrap();
            std::fs::remove_dir(&squatted)
                .or_else(|_| std::fs::remove_file(&squatted))
                .unwrap();
        }
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn in_a_directory_of_its_own_nobody_moves_it_aside() {
        let public = Public::new("own");
        let foreign = public.home.join("kennel-65534");
        make_dir(&foreign, 0o700);
        let (_, fixed) = public.pasted_by_nobody(&foreign);
        assert_eq!(said(&fixed), foreign.to_str().unwrap());
        assert_eq!(mode_of(&foreign), 0o700);
        assert!(public.home.join("kennel-65534.foreign").exists());
    }

    #[test]
    #[ignore = "needs root: cargo xtask test"]
    fn root_is_not_told_to_remove_a_link_of_the_system() {
        let scope = Scope::new("system-link");
        let links = ["/var/run", "/bin", "/lib"].map(Path::new);
        for link in links.into_iter().filter(|link| link.is_symlink()) {
            let refused = scope
                .command(bin("tk-dir"))
                .arg("of-user")
                .env("KENNEL_RUNTIME_DIR", link)
                .output()
                .unwrap();
            let own = "export KENNEL_RUNTIME_DIR=\"$HOME/.kennel-run\"";
            assert_eq!(said(&refused), own, "{refused:?}");
        }
    }
}
