//! How often, and how random: `--full` sets the counts, and one printed seed the random choices.

use std::sync::OnceLock;

/// Whether this is a full run (`cargo xtask test --full`).
pub fn full() -> bool {
    std::env::var_os("KENNEL_FULL").is_some_and(|value| value == "1")
}

/// `full_count` in a full run, a tenth of it (at least one) otherwise.
pub fn count(full_count: u32) -> u32 {
    if full() {
        full_count
    } else {
        full_count.div_ceil(10)
    }
}

/// The seed of this run: `KENNEL_SEED` if set, else a new one. Printed once, so that a failure can be repeated.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = match std::env::var("KENNEL_SEED") {
            Ok(text) => text.parse().expect("KENNEL_SEED is a whole number"),
            Err(_) => {
                std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), std::process::id())
            }
        };
        eprintln!("KENNEL_SEED={seed}");
        seed
    })
}

/// A deterministic random generator (splitmix64): the same seed and label give the same choices.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this run for one purpose; labels keep purposes independent of each other.
    pub fn seeded(label: &str) -> Rng {
        Rng::of(seed(), label)
    }

    /// The generator of this seed for one purpose, independent of the seed of the run.
    pub fn of(seed: u64, label: &str) -> Rng {
        let mix = label.bytes().fold(seed, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Rng(mix)
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }

    /// A duration below `bound`, in whole microseconds.
    pub fn duration_below(&mut self, bound: std::time::Duration) -> std::time::Duration {
        std::time::Duration::from_micros(self.below(bound.as_micros() as u64))
    }
}
