//! One life at a time, told in seconds.

use kennel_core::lifetime::{ClientId, Lifetime, Liveness, Owner, Policy, Reason, State};
use kennel_core::time::Moment;

use crate::world::{just_before, second, seconds};

const ANN: ClientId = ClientId(1);
const BOB: ClientId = ClientId(2);

fn shared(owner: Owner) -> Lifetime {
    Lifetime::new(Policy::SHARED, owner, second(0))
}

fn reason(life: &Lifetime) -> Option<Reason> {
    life.verdict().map(|verdict| verdict.reason)
}

fn linger_over(without_clients_for: u64) -> Option<Reason> {
    let without_clients_for = seconds(without_clients_for);
    Some(Reason::LingerOver {
        without_clients_for,
    })
}

fn owner_gone(without_clients_for: u64) -> Option<Reason> {
    let without_clients_for = seconds(without_clients_for);
    Some(Reason::OwnerGone {
        without_clients_for,
    })
}

fn silent(silent_for: u64) -> Option<Reason> {
    let silent_for = seconds(silent_for);
    Some(Reason::Silent { silent_for })
}

// Linger.

#[test]
fn rule_2_a_server_nobody_came_to_ends_after_linger() {
    let mut life = shared(Owner::None);
    assert_eq!(life.next_timeout(), Some(second(60)));

    life.advance(just_before(second(60)));
    assert_eq!(life.verdict(), None);

    life.advance(second(60));
    assert_eq!(reason(&life), linger_over(60));
    assert_eq!(life.verdict().map(|verdict| verdict.at), Some(second(60)));
}

#[test]
fn linger_counts_from_the_last_departure() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(1));
    life.handle_client_attached(BOB, Liveness::Watchable, second(2));
    life.handle_client_gone(ANN, second(100));
    assert_eq!(life.next_timeout(), None);

    life.handle_client_gone(BOB, second(200));
    assert_eq!(life.next_timeout(), Some(second(260)));
}

#[test]
fn lesson_26_a_client_that_comes_back_in_time_gets_the_whole_linger_again() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_gone(ANN, second(10));
    life.handle_client_attached(ANN, Liveness::Watchable, second(69));
    life.advance(second(10_000));
    assert_eq!(life.verdict(), None);

    life.handle_client_gone(ANN, second(10_000));
    assert_eq!(life.next_timeout(), Some(second(10_060)));
}

#[test]
fn lesson_30_a_client_at_the_very_deadline_handed_in_first_is_not_cut_off() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(0));
    life.handle_client_attached(
        ANN,
        Liveness::Unwatchable,
        life.next_timeout().expect("grace runs"),
    );
    life.advance(second(5));
    assert_eq!(life.verdict(), None);
    assert_eq!(life.state(), State::ServingUnowned);
}

#[test]
fn a_late_client_cancels_a_deadline_that_nobody_ticked() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(500));
    life.advance(second(500));
    assert_eq!(life.verdict(), None);
}

#[test]
fn a_departure_reported_twice_does_not_prolong_linger() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_gone(ANN, second(10)); // its connection
    life.handle_client_gone(ANN, second(20)); // its process
    assert_eq!(life.next_timeout(), Some(second(70)));
}

#[test]
fn a_client_attached_twice_is_one_client_and_leaves_once() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_attached(ANN, Liveness::Watchable, second(1));
    assert_eq!(life.clients(), 1);

    life.handle_client_gone(ANN, second(2));
    assert_eq!(life.state(), State::Idle);
}

#[test]
fn a_stranger_who_leaves_or_speaks_is_no_client() {
    let mut life = shared(Owner::None);
    life.handle_client_gone(BOB, second(10));
    life.handle_traffic(BOB, second(20));
    assert_eq!((life.clients(), life.state()), (0, State::Idle));
    assert_eq!(life.next_timeout(), Some(second(60)));

    life.handle_client_attached(ANN, Liveness::Watchable, second(30));
    life.handle_client_gone(BOB, second(40));
    assert_eq!((life.clients(), life.state()), (1, State::Serving));
}

#[test]
fn a_solo_server_ends_with_its_session() {
    let mut life = Lifetime::new(Policy::DEDICATED, Owner::None, second(0));
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.advance(second(1));
    life.handle_client_gone(ANN, second(9));
    assert_eq!(life.next_timeout(), Some(second(9)));

    life.advance(second(9));
    assert_eq!(reason(&life), linger_over(0));
}

#[test]
fn without_linger_an_empty_house_is_no_reason_to_end() {
    let policy = Policy {
        linger: None,
        ..Policy::SHARED
    };
    let mut life = Lifetime::new(policy, Owner::Watched, second(0));
    assert_eq!(life.next_timeout(), None);
    life.advance(Moment::END);
    assert_eq!(life.verdict(), None);
}

#[test]
fn without_linger_the_owner_still_counts() {
    let policy = Policy {
        linger: None,
        ..Policy::SHARED
    };
    let mut life = Lifetime::new(policy, Owner::Watched, second(0));
    life.handle_owner_gone(second(100));
    life.advance(second(105));
    assert_eq!(reason(&life), owner_gone(5));
}

#[test]
fn a_linger_longer_than_time_itself_never_ends() {
    let policy = Policy {
        linger: Some(std::time::Duration::MAX),
        ..Policy::SHARED
    };
    let mut life = Lifetime::new(policy, Owner::None, second(0));
    assert_eq!(life.next_timeout(), None);
    life.advance(Moment::END);
    assert_eq!(life.verdict(), None);
}

// The owner.

#[test]
fn rule_2_owner_gone_and_nobody_attached_for_the_whole_grace_is_the_end() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(10));
    assert_eq!(life.next_timeout(), Some(second(15)));

    life.advance(just_before(second(15)));
    assert_eq!(life.verdict(), None);

    life.advance(second(15));
    assert_eq!(reason(&life), owner_gone(5));
}

#[test]
fn lesson_26_a_session_cancels_the_grace_and_its_end_starts_it_anew() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(0));
    life.handle_client_attached(ANN, Liveness::Watchable, second(4));
    life.advance(second(1_000));
    assert_eq!(life.verdict(), None);

    life.handle_client_gone(ANN, second(1_000));
    assert_eq!(life.next_timeout(), Some(second(1_005)));
    life.advance(second(1_005));
    assert_eq!(reason(&life), owner_gone(5));
}

#[test]
fn lesson_27_the_owner_goes_and_the_sessions_of_others_stay() {
    let mut life = shared(Owner::Watched);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_attached(BOB, Liveness::Watchable, second(0));
    life.handle_owner_gone(second(1));
    life.handle_client_gone(ANN, second(1));
    assert_eq!(life.next_timeout(), None);
    life.advance(second(100_000));
    assert_eq!(life.verdict(), None);
}

#[test]
fn an_owner_reported_gone_twice_does_not_prolong_the_grace() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(10));
    life.handle_owner_gone(second(14));
    assert_eq!(life.next_timeout(), Some(second(15)));
}

#[test]
fn with_no_owner_the_grace_is_never_armed() {
    let mut life = shared(Owner::None);
    life.handle_owner_gone(second(1));
    assert_eq!(life.state(), State::Idle);
    assert_eq!(life.next_timeout(), Some(second(60)));
}

#[test]
fn an_owner_that_goes_late_leaves_linger_as_it_runs() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(58));
    assert_eq!(life.next_timeout(), Some(second(60)));
    life.advance(second(60));
    assert_eq!(reason(&life), linger_over(60));
}

#[test]
fn of_grace_and_linger_at_the_same_moment_the_owner_is_named() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(55));
    life.advance(second(60));
    assert_eq!(reason(&life), owner_gone(5));
}

// The backstop.

#[test]
fn lesson_25_a_quiet_client_that_can_be_seen_is_never_silent() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_attached(BOB, Liveness::Unwatchable, second(0));
    assert_eq!(life.next_timeout(), None);
    life.advance(second(1_000_000));
    assert_eq!(life.verdict(), None);
}

#[test]
fn clients_neither_seen_nor_heard_are_phantoms_after_max_idle() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Unwatchable, second(0));
    life.handle_client_attached(BOB, Liveness::Unwatchable, second(100));
    life.handle_traffic(ANN, second(200));
    assert_eq!(life.next_timeout(), Some(second(2_000)));

    life.advance(second(2_000));
    assert_eq!(reason(&life), silent(1_800));
}

#[test]
fn a_strangers_traffic_is_no_sign_of_life() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Unwatchable, second(0));
    life.handle_traffic(BOB, second(1_000));
    assert_eq!(life.next_timeout(), Some(second(1_800)));
}

#[test]
fn silence_counts_from_the_moment_nobody_is_seen_any_more() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_attached(BOB, Liveness::Unwatchable, second(0));
    life.handle_client_gone(ANN, second(5_000));
    assert_eq!(life.next_timeout(), Some(second(6_800)));
}

#[test]
fn a_client_becomes_seen_once_its_process_is_known_and_stays_so() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Unwatchable, second(0)); // accepted
    assert_eq!(life.next_timeout(), Some(second(1_800)));
    life.handle_client_attached(ANN, Liveness::Watchable, second(1)); // introduced
    assert_eq!(life.next_timeout(), None);
    life.handle_client_attached(ANN, Liveness::Unwatchable, second(2));
    assert_eq!(life.next_timeout(), None);
}

#[test]
fn at_zero_clients_linger_alone_decides() {
    let policy = Policy {
        linger: Some(seconds(60)),
        max_idle: Some(seconds(1)),
        ..Policy::SHARED
    };
    let mut life = Lifetime::new(policy, Owner::None, second(0));
    life.handle_client_attached(ANN, Liveness::Unwatchable, second(0));
    life.handle_client_gone(ANN, second(1));
    assert_eq!(life.next_timeout(), Some(second(61)));
    life.advance(second(60));
    assert_eq!(life.verdict(), None);
}

// The server.

#[test]
fn a_server_that_exits_with_nobody_attached_is_not_wanted_back() {
    let mut life = shared(Owner::None);
    life.handle_server_started(second(0));
    life.handle_server_exited(second(1));
    assert_eq!(reason(&life), Some(Reason::ServerExited));
}

#[test]
fn a_server_that_exits_under_its_clients_may_come_back() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_server_exited(second(1));
    life.advance(second(1_000));
    assert_eq!((life.verdict(), life.state()), (None, State::Down));

    life.handle_server_started(second(1_000));
    life.handle_client_gone(ANN, second(1_001));
    assert_eq!(life.next_timeout(), Some(second(1_061)));
}

#[test]
fn clients_that_all_leave_a_server_that_is_down_end_it_at_once() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_client_attached(BOB, Liveness::Watchable, second(0));
    life.handle_server_exited(second(1));
    life.handle_client_gone(ANN, second(2));
    assert_eq!(life.verdict(), None);
    life.handle_client_gone(BOB, second(3));
    assert_eq!(reason(&life), Some(Reason::ServerExited));
}

// The end, and time.

#[test]
fn a_stop_that_is_asked_for_comes_at_once_whoever_is_attached() {
    let mut life = shared(Owner::Watched);
    life.handle_client_attached(ANN, Liveness::Watchable, second(0));
    life.handle_stop(second(1));
    assert_eq!(reason(&life), Some(Reason::StopRequested));
    assert_eq!(life.next_timeout(), None);
}

#[test]
fn the_first_reason_stands() {
    let mut life = shared(Owner::None);
    life.advance(second(60));
    let verdict = life.verdict();
    life.handle_stop(second(61));
    life.handle_client_attached(ANN, Liveness::Watchable, second(62));
    life.handle_server_exited(second(63));
    assert_eq!(life.verdict(), verdict);
}

#[test]
fn a_late_tick_names_what_ended_first_and_how_long_it_really_was() {
    let mut life = shared(Owner::Watched);
    life.handle_owner_gone(second(10));
    life.advance(second(100_000));
    assert_eq!(reason(&life), owner_gone(99_990));
    assert_eq!(
        life.verdict().map(|verdict| verdict.at),
        Some(second(100_000))
    );
}

#[test]
fn time_does_not_run_backwards() {
    let mut life = shared(Owner::None);
    life.handle_client_attached(ANN, Liveness::Unwatchable, second(100));
    life.handle_traffic(ANN, second(50));
    assert_eq!(life.next_timeout(), Some(second(1_900)));
    life.handle_client_gone(ANN, second(20));
    assert_eq!(life.next_timeout(), Some(second(160)));
}
