//! The target `session`: see `fuzz/src/lib.rs`.
#![cfg_attr(fuzzing, no_main)]

kennel_fuzz::fuzz_target!(Session);
