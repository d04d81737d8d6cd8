//! Random schedules, each from the run's seed and its number.

use kennel_sim::{Coverage, Schedule, Situation, play, play_counted, report, trace_of};
use kennel_testkit::{count, seed};

#[test]
fn no_schedule_breaks_a_rule() {
    for number in 0..u64::from(count(100_000)) {
        let schedule = Schedule::draw(seed(), number);
        if play(&schedule).is_some() {
            panic!("{}", report(seed(), number));
        }
    }
}

#[test]
fn every_play_occurs_within_5000_schedules() {
    let mut coverage = Coverage::default();
    for number in 0..5_000 {
        play_counted(&Schedule::draw(seed(), number), &mut coverage);
    }
    for play in Situation::ALL {
        assert!(coverage.schedules(play) > 0, "{play:?}\n{coverage}");
    }
}

#[test]
fn a_schedule_goes_the_same_way_every_time() {
    for number in 0..20 {
        let schedule = Schedule::draw(seed(), number);
        assert_eq!(
            trace_of(&schedule),
            trace_of(&schedule),
            "schedule {number}"
        );
    }
}

#[test]
fn a_schedule_that_broke_a_rule_once_breaks_none_now() {
    let kept = [
        // A server outlived its input while it waited for a response of an app that had closed its side.
        (9_574_995_488_831_766_608, 86_392),
        // Two lines for one server in one event: the first was written in part, and the second into the middle of it.
        (777, 155_768),
    ];
    for (seed, number) in kept {
        let schedule = Schedule::draw(seed, number);
        assert!(play(&schedule).is_none(), "{}", report(seed, number));
    }
}
