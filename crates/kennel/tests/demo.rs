//! The first thing a newcomer runs.

use std::time::Duration;

use kennel_testkit::{Scope, run};

#[test]
fn the_demo_tells_its_story_and_leaves_nothing_behind() {
    let scope = Scope::new("demo");
    let before = std::fs::read_dir(scope.dir()).unwrap().count();
    let ended = run(scope.command(env!("CARGO_BIN_EXE_kennel")).arg("demo"));
    assert_eq!(ended.code(), Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(ended.stderr, "");
    for words in [
        "10 sessions, one daemon",
        "all 10 answering again after",
        "nothing left after",
    ] {
        assert!(ended.stdout.contains(words), "{words}: {}", ended.stdout);
    }
    scope.nothing_left_within("after the demo", Duration::from_secs(60));
    assert_eq!(std::fs::read_dir(scope.dir()).unwrap().count(), before);
}
