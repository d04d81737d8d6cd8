//! Elections: the order of steps, and that every election ends.

use std::time::Duration;

use kennel_core::election::{
    ConnectResult, Election, ElectionResult, KnownDaemon, LockResult, Reply, StartResult, Step,
    StepResult, StuckCheck, SuspectCheck,
};
use kennel_core::time::Moment;
use proptest::prelude::*;

const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Passes in these results in order, and returns the next step.
fn after(known: KnownDaemon, results: &[StepResult]) -> Step {
    let mut election = Election::new(known, START_TIMEOUT, Moment::START);
    for result in results {
        election.handle(result.clone(), Moment::START);
    }
    election.step()
}

fn connect(result: ConnectResult) -> StepResult {
    StepResult::Connect(result)
}

#[test]
fn a_shim_that_has_the_lock_connects_and_probes_again_before_it_starts_a_daemon() {
    let mut results = vec![StepResult::Done, connect(ConnectResult::Absent)];
    assert_eq!(after(KnownDaemon::None, &results), Step::TryLock);
    results.push(StepResult::Lock(LockResult::Acquired));
    assert_eq!(after(KnownDaemon::None, &results), Step::Connect);
    results.push(connect(ConnectResult::Absent));
    assert_eq!(after(KnownDaemon::None, &results), Step::ProbeDaemonLock);
    results.push(StepResult::DaemonLockHeld(false));
    assert_eq!(after(KnownDaemon::None, &results), Step::StartDaemon);
    results.push(StepResult::Started(StartResult::Ready));
    assert_eq!(after(KnownDaemon::None, &results), Step::SendHello);
}

#[test]
fn a_suspect_is_verified_and_pinged_before_it_is_killed() {
    let mut results = vec![StepResult::Done, StepResult::Lock(LockResult::Acquired)];
    assert_eq!(after(KnownDaemon::Suspect, &results), Step::VerifySuspect);
    results.push(StepResult::Suspect(SuspectCheck::Verified));
    assert_eq!(after(KnownDaemon::Suspect, &results), Step::Connect);
    results.push(connect(ConnectResult::Connected));
    assert_eq!(after(KnownDaemon::Suspect, &results), Step::PingSuspect);
    let stuck = [
        &results[..],
        &[StepResult::Reply(Reply::Silent(StuckCheck::Stuck))],
    ]
    .concat();
    assert_eq!(after(KnownDaemon::Suspect, &stuck), Step::KillSuspect);
    let there = [&results[..], &[StepResult::Reply(Reply::Pong)]].concat();
    assert_eq!(
        after(KnownDaemon::Suspect, &there),
        Step::Finish(ElectionResult::NotStuck)
    );
    // Its client would have no daemon.
    let gone = [&results[..], &[StepResult::Suspect(SuspectCheck::Gone)]].concat();
    assert!(matches!(
        after(KnownDaemon::Suspect, &gone),
        Step::BeginAgain(_)
    ));
}

#[test]
fn lesson_36_five_daemons_are_started_and_no_sixth() {
    let round = [
        StepResult::Done,
        connect(ConnectResult::Absent),
        StepResult::Lock(LockResult::Acquired),
        connect(ConnectResult::Absent),
        StepResult::DaemonLockHeld(false),
        StepResult::Started(StartResult::Exited("of nothing".to_owned())),
        StepResult::Done,
    ];
    let five: Vec<StepResult> = (0..5).flat_map(|_| round.clone()).collect();
    let sixth = [&five[..], &round[..5]].concat();
    assert!(
        matches!(after(KnownDaemon::None, &sixth), Step::Finish(ElectionResult::NoDaemon(why)) if why.contains("of nothing"))
    );
}

/// A possible result of this step.
fn result(step: &Step, die: u8, turn: usize) -> StepResult {
    let looks = [
        StuckCheck::Undecided,
        StuckCheck::Overdue,
        StuckCheck::NotStuck,
        StuckCheck::Unknown,
    ];
    // A check does not stay undecided for ever.
    let look = match turn % 7 {
        0 => StuckCheck::Stuck,
        _ => looks[usize::from(die / 8 % 4)],
    };
    let why = || "why".to_owned();
    match step {
        _ if die == 255 => StepResult::Failed(why()),
        Step::OpenRuntimeDir | Step::KillStuckStart | Step::KillSuspect => StepResult::Done,
        Step::WaitForExit(_) | Step::Sleep(_) | Step::BeginAgain(_) => StepResult::Done,
        Step::Connect => connect(
            [
                ConnectResult::Connected,
                ConnectResult::Busy,
                ConnectResult::Absent,
                ConnectResult::Absent,
            ][usize::from(die % 4)],
        ),
        Step::CheckDaemon(_) => StepResult::Check(look),
        Step::LockOrReportHolder if die.is_multiple_of(2) => StepResult::Failed(why()),
        Step::LockOrReportHolder => StepResult::Lock(LockResult::Acquired),
        Step::TryLock => StepResult::Lock(match die % 4 {
            0 | 1 => LockResult::Acquired,
            2 => LockResult::HeldByOther,
            _ => LockResult::Removed(why()),
        }),
        Step::VerifySuspect => {
            StepResult::Suspect([SuspectCheck::Gone, SuspectCheck::Verified][usize::from(die % 2)])
        }
        Step::ProbeDaemonLock => StepResult::DaemonLockHeld(die.is_multiple_of(2)),
        Step::ReportLockHolder => StepResult::Failed(why()),
        Step::StartDaemon => StepResult::Started(match die % 3 {
            0 => StartResult::Ready,
            _ => StartResult::Exited(why()),
        }),
        Step::PingSuspect | Step::SendHello => StepResult::Reply(match die % 8 {
            0 => Reply::Hello,
            1 => Reply::Pong,
            2 | 3 => Reply::Leaving,
            4 | 5 => Reply::Closed,
            _ => Reply::Silent(look),
        }),
        Step::Finish(_) => StepResult::Cancelled,
    }
}

proptest! {
    #[test]
    fn rule_1_no_daemon_is_started_or_killed_without_the_lock_and_every_election_ends(
        dice in proptest::collection::vec(any::<u8>(), 1..400),
        suspected: bool,
    ) {
        let known = if suspected { KnownDaemon::Suspect } else { KnownDaemon::None };
        let mut now = Moment::START;
        let mut election = Election::new(known, START_TIMEOUT, now);
        let (mut locked, mut free) = (false, false);
        for turn in 0..100_000 {
            let step = election.step();
            match &step {
                Step::Finish(_) => return Ok(()),
                Step::StartDaemon => prop_assert!(locked && free, "a start without lock or judgement"),
                Step::KillSuspect | Step::VerifySuspect | Step::ProbeDaemonLock => prop_assert!(locked, "{step:?} without the lock"),
                Step::TryLock => prop_assert!(!locked, "it has the lock"),
                Step::SendHello | Step::BeginAgain(_) => locked = false,
                Step::Sleep(nap) => now = now + *nap,
                _ => {}
            }
            if let Step::WaitForExit(length) | Step::BeginAgain(length) = &step {
                now = now + *length;
            }
            let result = result(&step, dice[turn % dice.len()], turn);
            match &result {
                StepResult::Lock(turn) => locked = *turn == LockResult::Acquired,
                StepResult::DaemonLockHeld(held) => free = !held,
                _ if step == Step::StartDaemon => locked = false,
                _ => {}
            }
            // Waiting for an answer takes time.
            if let StepResult::Reply(_) | StepResult::Check(_) = result {
                now = now + Duration::from_millis(50);
            }
            election.handle(result, now);
        }
        prop_assert!(false, "it goes on for ever, at {:?}", election.step());
    }
}
