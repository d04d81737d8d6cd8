//! The target `message`: see `fuzz/src/lib.rs`.
#![cfg_attr(fuzzing, no_main)]

kennel_fuzz::fuzz_target!(Message);
