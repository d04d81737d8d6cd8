//! One test, on several kernels: this one, and this one with features switched off.

use std::any::type_name_of_val;
use std::process::Command;

/// What is switched off in each round; see `kennel_sys::kernel`.
const ROUNDS: [&str; 4] = ["", "pidfs", "peer-pidfd", "pidfd"];

/// Runs `test` once per kind of kernel, each in a process of its own. Call it as the test's only
/// statement: the process is the test's program, started again for this one test.
#[track_caller]
pub fn on_each_kernel<F: FnOnce()>(test: F) {
    if std::env::var_os("TESTKIT_ROUND").is_some() {
        return test();
    }
    // `program::module::name::{{closure}}` is the test `module::name` of that program.
    let path = type_name_of_val(&test).trim_end_matches("::{{closure}}");
    let (_, name) = path.split_once("::").expect("a test in a program");
    for off in ROUNDS {
        let program = std::env::current_exe().expect("the running test has a path");
        let output = Command::new(program)
            .args(["--exact", name, "--nocapture"])
            .env("TESTKIT_ROUND", "1")
            .env("KENNEL_FEATURES_OFF", off)
            .output()
            .expect("the test starts again");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{name} with {off:?} switched off:\n{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
