//! What was thrown at a target once and is worth keeping holds still.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "in a test, a panic is the report, and the file named last is what caused it"
)]

use std::path::Path;

use kennel_fuzz::Target;

#[track_caller]
fn holds(target: Target) {
    let corpus = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let corpus = Path::new(&corpus).join("corpus").join(target.name());
    let mut files: Vec<_> = std::fs::read_dir(corpus)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(!files.is_empty());
    for file in files {
        println!("{}", file.display());
        target.check(&std::fs::read(file).unwrap());
    }
}

#[test]
fn every_kept_line_is_read_as_serde_reads_it_and_spliced_to_the_byte() {
    holds(Target::Message);
}

#[test]
fn every_kept_schedule_of_clients_is_answered_each_their_own() {
    holds(Target::Mux);
}

#[test]
fn every_kept_schedule_of_upstreams_is_answered_once() {
    holds(Target::Session);
}

#[test]
fn every_kept_stream_is_cut_into_its_lines() {
    holds(Target::Lines);
}

#[test]
fn every_kept_hello_means_the_same_when_it_is_said_again() {
    holds(Target::Hello);
}

#[test]
fn every_kept_record_says_the_same_when_it_is_written_again() {
    holds(Target::Record);
}

#[test]
fn every_kept_lock_holds_a_record_or_none() {
    holds(Target::Lock);
}

#[test]
fn every_kept_servers_toml_can_be_asked() {
    holds(Target::Servers);
}

#[test]
fn every_kept_configuration_goes_there_and_back() {
    holds(Target::Wrap);
}
