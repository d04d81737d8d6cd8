//! Random cases from one printed seed, so that a failure can be run again.

use std::fmt::Debug;
use std::hash::{BuildHasher, RandomState};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// Checks `property` for random values of `cases`: 256 of them, 20,000 in a full run. `label` keeps
/// the properties of one run independent of each other.
#[track_caller]
pub(crate) fn holds<S: Strategy>(
    label: &str,
    cases: S,
    property: impl Fn(S::Value) -> TestCaseResult,
) where
    S::Value: Debug,
{
    let seed = match variable("KENNEL_SEED") {
        Some(text) => text.parse().expect("KENNEL_SEED is a whole number"),
        None => RandomState::new().hash_one(label),
    };
    let config = Config {
        cases: match variable("KENNEL_FULL").as_deref() {
            Some("1") => 20_000,
            _ => 256,
        },
        // The seed is the record: nothing is written beside the sources.
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &stretched(seed, label));
    if let Err(failure) = TestRunner::new_with_rng(config, rng).run(&cases, property) {
        panic!("KENNEL_SEED={seed}: {failure}");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "how many cases and which ones is the run's choice, not the library's"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// 32 bytes of seed from 8, different for every label.
fn stretched(seed: u64, label: &str) -> [u8; 32] {
    let mut state = label.bytes().fold(seed, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    std::array::from_fn(|_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
}
