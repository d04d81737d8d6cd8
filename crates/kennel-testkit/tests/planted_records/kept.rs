//! Records of kept services: one alone keeps no process and ends none.

use super::*;

fn kept_record(identity: &str, reason: &str, tree: &str) -> String {
    format!("kennel-kept 1\nprocess {identity}\nreason {reason}\nsince 1\ncommand x\ntree {tree}\n")
}

#[test]
fn rule_2_a_kept_record_that_a_server_wrote_itself_spares_nobody() {
    for reason in ["used", "known", "unseen", "asked"] {
        let scope = Scope::new("own-kept-record");
        let mut detached = innocent(&scope, |command| {
            command.env("KENNEL_TREE", cookie());
        });
        plant(&scope, cookie(), "session 0\n");
        let identity = identity_of(&detached).to_string();
        let text = kept_record(&identity, reason, cookie());
        std::fs::write(trees(&scope).join("kept-1-1"), text).unwrap();
        next_start(&scope);
        assert!(!detached.wait().unwrap().success(), "{reason}");
    }
}

#[test]
fn a_kept_record_of_another_pid_namespace_spares_nobody_and_stays() {
    let scope = Scope::new("kept-elsewhere");
    let mut leftover = innocent(&scope, |command| {
        command.env("KENNEL_TREE", cookie());
    });
    plant(&scope, cookie(), "session 0\n");
    let identity = identity_of(&leftover).to_string();
    let (rest, _namespace) = identity.rsplit_once(':').unwrap();
    let record = trees(&scope).join("kept-1-1");
    let text = kept_record(&format!("{rest}:1"), "asked", cookie());
    std::fs::write(&record, text).unwrap();
    next_start(&scope);
    assert!(!leftover.wait().unwrap().success(), "spared by its pid");
    assert!(record.exists(), "nobody here can tell whether it is needed");
}

#[test]
fn a_kept_record_alone_confirms_nobody() {
    let scope = Scope::new("confirmed");
    let plain = innocent(&scope, |_| {});
    let marked = innocent(&scope, |command| {
        command.env("KENNEL_TREE", cookie());
    });
    for child in [&plain, &marked] {
        let record = kept_record(&identity_of(child).to_string(), "asked", cookie());
        let name = format!("kept-{}-1", child.id());
        std::fs::write(trees(&scope).join(name), record).unwrap();
    }
    let dir = std::fs::File::open(trees(&scope)).unwrap();
    let confirmed: Vec<u32> = tree::kept(dir.as_fd())
        .unwrap()
        .iter()
        .filter(|it| it.is_confirmed())
        .map(|it| it.identity.pid())
        .collect();
    assert_eq!(confirmed, [marked.id()]);
    end(plain);
    end(marked);
}

#[test]
fn a_kept_record_alone_ends_nobody() {
    let scope = Scope::new("end-kept");
    let plain = innocent(&scope, |_| {});
    let of_another_tree = innocent(&scope, |command| {
        command.env("KENNEL_TREE", "f".repeat(32));
    });
    for child in [&plain, &of_another_tree] {
        let identity = identity_of(child).to_string();
        let text = kept_record(&identity, "used", cookie());
        std::fs::write(trees(&scope).join("kept-1-1"), text).unwrap();
        let dir = std::fs::File::open(trees(&scope)).unwrap();
        let kept = tree::kept(dir.as_fd()).unwrap().remove(0);
        let error = tree::end_kept(dir.as_fd(), &kept, Duration::from_millis(50)).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("does not show that Kennel started it"),
            "{error}"
        );
        assert!(error.contains("kill "), "{error}");
        assert!(lives(&identity_of(child)));
    }
    end(plain);
    end(of_another_tree);
}

#[test]
fn a_kept_service_in_the_tree_of_another_server_is_left_alone_for_that_reason() {
    let scope = Scope::new("kept-in-another-tree");
    let (stubborn, roll) = (bin("tk-stubborn"), scope.roll());
    let (stubborn, roll) = (stubborn.display(), roll.display());
    // As if a session inside the server had kept them.
    let one = format!("KENNEL_TREE={} {stubborn} {roll} stay", cookie());
    let mut served = Served::start_script(&scope, &format!("{one} & {one}"));
    let text = kept_record(&served.members[0].to_string(), "used", cookie());
    std::fs::write(trees(&scope).join("kept-1-1"), text).unwrap();
    let dir = std::fs::File::open(trees(&scope)).unwrap();
    let kept = tree::kept(dir.as_fd()).unwrap().remove(0);
    let error = tree::end_kept(dir.as_fd(), &kept, Duration::from_millis(50)).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("another server"), "{error}");
    let kill = format!("`kill {}`", served.members[0].pid());
    assert!(error.contains(&kill), "{error}");
    assert_eq!(served.live(), 2);
    served.child.kill().unwrap();
    served.child.wait().unwrap();
}

#[test]
fn an_argument_that_names_a_known_service_keeps_nobody_without_a_listening_socket() {
    let scope = Scope::new("argument");
    let script = format!(
        "setsid sh -c 'echo $$ >{0}.new; mv {0}.new {0}; while :; do sleep 0.05; done' x codegraph & \
         {1} {2} stay",
        scope.path("pid").display(),
        bin("tk-stubborn").display(),
        scope.roll().display()
    );
    let mut detached = None;
    ended_tree(&scope, &script, 1, |_| {
        detached = Some(wait_for("the detached process", || {
            let pid = std::fs::read_to_string(scope.path("pid")).ok()?;
            Some(*ProcessRef::open(pid.trim().parse().ok()?).ok()?.identity())
        }));
    });
    assert!(!lives(&detached.unwrap()));
}

#[test]
fn a_planted_record_does_not_end_a_service_that_was_kept() {
    for policy in ["keep", "auto"] {
        let scope = Scope::new("kept-and-planted");
        let socket = scope.path("backend.sock");
        let mut child = scope
            .command(bin("tk-tree"))
            .arg("serve")
            .arg(trees(&scope))
            .args(["50", "50", "--"])
            .arg(bin("tk-backend"))
            .arg("serve")
            .arg(&socket)
            .arg(scope.roll())
            .env("TK_DETACHED", policy)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let signed = wait_for("the backend", || scope.signed().first().copied());
        // Somebody outside the tree uses it: so it is kept in either case.
        let user = wait_for("a connection", || {
            std::os::unix::net::UnixStream::connect(&socket).ok()
        });
        child.stdin.as_mut().unwrap().write_all(b"stop\n").unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let told: Vec<String> = lines.map_while(Result::ok).collect();
        assert!(told.iter().any(|line| line == "report Empty"), "{told:?}");
        child.wait().unwrap();
        let dir = std::fs::File::open(trees(&scope)).unwrap();
        let kept = tree::kept(dir.as_fd()).unwrap().remove(0);
        let cookie = kept.tree.clone().unwrap();
        for session in [0, signed.pid()] {
            plant(
                &scope,
                &cookie,
                &format!("session {session}\nserver {signed}\ndetached end\n"),
            );
            next_start(&scope);
            assert!(lives(&signed), "{policy} {session}");
        }
        if policy == "keep" {
            // As does one who also removes the record that it was kept, with everybody gone who used it.
            drop(user);
            let record = kept_records(&scope).remove(0);
            std::fs::remove_file(record).unwrap();
            plant(
                &scope,
                &cookie,
                &format!("session {}\ndetached end\n", signed.pid()),
            );
            next_start(&scope);
            assert!(lives(&signed), "without its record");
            assert_eq!(kept_records(&scope).len(), 1, "it is on record again");
        }
        let kept = tree::kept(dir.as_fd()).unwrap().remove(0);
        assert!(tree::end_kept(dir.as_fd(), &kept, Duration::from_millis(50)).unwrap());
    }
}

fn kept_records(scope: &Scope) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(trees(scope)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_kept = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("kept-")
    };
    paths.filter(is_kept).collect()
}

#[test]
fn a_changed_record_does_not_end_a_kept_service_after_its_warden_was_killed() {
    let scope = Scope::new("kept-stray");
    let mut child = scope
        .command(bin("tk-tree"))
        .arg("serve")
        .arg(trees(&scope))
        .args(["50", "50", "--"])
        .arg(bin("tk-backend"))
        .arg("serve")
        .arg(scope.path("backend.sock"))
        .arg(scope.roll())
        .env("TK_DETACHED", "keep")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let warden = lines.find_map(|line| {
        let identity = line.unwrap().strip_prefix("warden ")?.parse().ok()?;
        ProcessRef::find(&identity).unwrap()
    });
    let backend = wait_for("the backend", || scope.signed().first().copied());
    let record = Served::record(&scope);
    let text = std::fs::read_to_string(&record).unwrap();
    let changed = text.lines().map(|line| match line.split_once(' ') {
        Some(("detached", _)) => "detached end\n".to_owned(),
        Some(("session", _)) => format!("session {}\n", backend.pid()),
        _ => format!("{line}\n"),
    });
    std::fs::write(&record, changed.collect::<String>()).unwrap();
    warden.unwrap().signal(Signal::KILL).unwrap();
    // It ends the strays, and then itself.
    let told: Vec<String> = lines.map_while(Result::ok).collect();
    child.wait().unwrap();
    assert!(lives(&backend), "{told:?}");
    ProcessRef::find(&backend)
        .unwrap()
        .unwrap()
        .signal(Signal::KILL)
        .unwrap();
}
