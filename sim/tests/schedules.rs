//! Random schedules, each from the run's seed and its number.

use kennel_sim::{Schedule, play, report, tell};
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
fn a_schedule_goes_the_same_way_every_time() {
    for number in 0..20 {
        let schedule = Schedule::draw(seed(), number);
        assert_eq!(tell(&schedule), tell(&schedule), "schedule {number}");
    }
}
