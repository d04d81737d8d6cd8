//! The canary is found wherever it is, so that not to find it means something.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use kennel_testkit::{CANARY, Canary, Client, Scope, bin, run, wait_for};

#[test]
fn it_is_found_in_a_file_a_name_and_a_link_and_nowhere_else() {
    let scope = Scope::new("canary");
    let canary = Canary::fresh();
    let dir = scope.path("deep/er");
    std::fs::create_dir_all(&dir).unwrap();
    let says = |name: &str, text: String| std::fs::write(dir.join(name), text).unwrap();
    says("log", format!("\u{0}a line\nTOKEN={}\n", canary.value()));
    says("other", format!("{}\n", Canary::fresh().value()));
    says(&format!("{}.sock", canary.value()), String::new());
    symlink(format!("/tmp/{}", canary.value()), dir.join("link")).unwrap();
    let mut found = canary.below(scope.dir());
    found.sort();
    let named = dir.join(format!("{}.sock", canary.value()));
    let mut wanted = [dir.join("log"), dir.join("link"), named];
    wanted.sort();
    assert_eq!(found, wanted);
}

#[test]
fn it_is_found_among_the_arguments_of_who_runs() {
    let scope = Scope::new("canary-words");
    let canary = Canary::fresh();
    assert!(canary.among_arguments().is_empty());
    let mut cat = scope.command("sh");
    cat.args(["-c", "read word", "sh", canary.value()])
        .stdin(Stdio::piped());
    let mut child = cat.spawn().unwrap();
    // A process that has only just become another program has no arguments for a moment.
    let found = wait_for("its arguments", || {
        Some(canary.among_arguments()).filter(|found| !found.is_empty())
    });
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(&child.id().to_string()), "{found:?}");
    drop(child.stdin.take());
    child.wait().unwrap();
}

#[test]
fn what_a_scope_starts_has_it() {
    let scope = Scope::new("canary-inherited");
    let script = format!("test \"${CANARY}\" = \"$(cat)\"");
    let mut child = scope.command("sh");
    let mut child = Client::start(child.args(["-c", &script]));
    child.say(Canary::of_run().value());
    child.close();
    assert_eq!(child.wait().code(), Some(0));
}

#[test]
#[should_panic(expected = "/home/log")]
fn a_test_that_leaves_it_in_a_file_fails_and_says_where() {
    let scope = Scope::new("canary-left");
    std::fs::write(scope.path("home/log"), Canary::of_run().value()).unwrap();
}

#[test]
#[should_panic(expected = "is in stderr")]
fn a_test_whose_programs_say_it_fails() {
    let scope = Scope::new("canary-said");
    let script = format!("echo \"${CANARY}\" >&2");
    run(scope.command("sh").args(["-c", &script]));
}

#[test]
fn what_a_server_tells_its_app_is_between_the_two() {
    let scope = Scope::new("canary-told");
    let mut client = Client::begin(&mut scope.command(bin("tk-server")));
    let said = serde_json::json!(Canary::of_run().value());
    assert_eq!(client.request("echo", said.clone())["result"], said);
}
