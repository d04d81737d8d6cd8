//! A short run of chaos, with the seed of the test run. `cargo xtask chaos` runs longer ones.

use std::process::Command;

use kennel_testkit::{bin, full, seed};

#[test]
fn no_rule_is_broken_in_a_short_chaos() {
    let seconds = if full() { "180" } else { "15" };
    let mut chaos = Command::new(bin("kennel-chaos"));
    // A shell hands on no variable that it cannot name: sessions behind one would have another environment.
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().contains(&b'-'))
    {
        chaos.env_remove(name);
    }
    let output = chaos
        .args([
            "--seed",
            &seed().to_string(),
            "--seconds",
            seconds,
            "--quick",
        ])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
