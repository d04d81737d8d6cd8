//! Elections as facts tell them: the order of steps, and that none goes on for ever.

use std::time::Duration;

use kennel_core::election::{
    Answer, Door, Election, End, Fact, Known, Look, Started, Step, Suspect, Turn,
};
use kennel_core::time::Moment;
use proptest::prelude::*;

const START_TIMEOUT: Duration = Duration::from_secs(5);

/// Plays these facts in order, each after its nap; the step that follows.
fn after(known: Known, facts: &[Fact]) -> Step {
    let mut election = Election::new(known, START_TIMEOUT, Moment::START);
    for fact in facts {
        election.heard(fact.clone(), Moment::START);
    }
    election.step()
}

fn door(door: Door) -> Fact {
    Fact::Door(door)
}

#[test]
fn whoever_has_the_lock_knocks_again_and_judges_before_it_starts() {
    let mut facts = vec![Fact::Done, door(Door::Absent)];
    assert_eq!(after(Known::Nobody, &facts), Step::TryLock);
    facts.push(Fact::Lock(Turn::Ours));
    assert_eq!(after(Known::Nobody, &facts), Step::Knock);
    facts.push(door(Door::Absent));
    assert_eq!(after(Known::Nobody, &facts), Step::Probe);
    facts.push(Fact::Held(false));
    assert_eq!(after(Known::Nobody, &facts), Step::Start);
    facts.push(Fact::Started(Started::Ready));
    assert_eq!(after(Known::Nobody, &facts), Step::Greet);
}

#[test]
fn a_suspect_is_proven_and_asked_before_it_is_ended() {
    let mut facts = vec![Fact::Done, Fact::Lock(Turn::Ours)];
    assert_eq!(after(Known::Suspect, &facts), Step::Prove);
    facts.push(Fact::Suspect(Suspect::Proven));
    assert_eq!(after(Known::Suspect, &facts), Step::Knock);
    facts.push(door(Door::Open));
    assert_eq!(after(Known::Suspect, &facts), Step::Ask);
    let stuck = [&facts[..], &[Fact::Answer(Answer::Silent(Look::Stuck))]].concat();
    assert_eq!(after(Known::Suspect, &stuck), Step::End);
    let there = [&facts[..], &[Fact::Answer(Answer::Pong)]].concat();
    assert_eq!(after(Known::Suspect, &there), Step::Over(End::NotStuck));
    // Its client would stay with nobody.
    let gone = [&facts[..], &[Fact::Suspect(Suspect::Gone)]].concat();
    assert!(matches!(after(Known::Suspect, &gone), Step::BeginAgain(_)));
}

#[test]
fn lesson_36_five_daemons_are_started_and_no_sixth() {
    let round = [
        Fact::Done,
        door(Door::Absent),
        Fact::Lock(Turn::Ours),
        door(Door::Absent),
        Fact::Held(false),
        Fact::Started(Started::Died("of nothing".to_owned())),
        Fact::Done,
    ];
    let five: Vec<Fact> = (0..5).flat_map(|_| round.clone()).collect();
    let sixth = [&five[..], &round[..5]].concat();
    assert!(
        matches!(after(Known::Nobody, &sixth), Step::Over(End::Solo(why)) if why.contains("of nothing"))
    );
}

/// A fact that may come of this step.
fn fact(step: &Step, die: u8, turn: usize) -> Fact {
    let looks = [Look::Waiting, Look::Overdue, Look::Works, Look::Unseen];
    // Nobody waits for ever: a look that says so comes to another end.
    let look = match turn % 7 {
        0 => Look::Stuck,
        _ => looks[usize::from(die / 8 % 4)],
    };
    let why = || "why".to_owned();
    match step {
        _ if die == 255 => Fact::Failed(why()),
        Step::Meet | Step::EndNewborn | Step::End => Fact::Done,
        Step::SeeOut(_) | Step::Nap(_) | Step::BeginAgain(_) => Fact::Done,
        Step::Knock => {
            door([Door::Open, Door::Busy, Door::Absent, Door::Absent][usize::from(die % 4)])
        }
        Step::Look(_) => Fact::Looked(look),
        Step::InsistOnLock if die.is_multiple_of(2) => Fact::Failed(why()),
        Step::InsistOnLock => Fact::Lock(Turn::Ours),
        Step::TryLock => Fact::Lock(match die % 4 {
            0 | 1 => Turn::Ours,
            2 => Turn::Theirs,
            _ => Turn::Lost(why()),
        }),
        Step::Prove => Fact::Suspect([Suspect::Gone, Suspect::Proven][usize::from(die % 2)]),
        Step::Probe => Fact::Held(die.is_multiple_of(2)),
        Step::Accuse => Fact::Failed(why()),
        Step::Start => Fact::Started(match die % 3 {
            0 => Started::Ready,
            _ => Started::Died(why()),
        }),
        Step::Ask | Step::Greet => Fact::Answer(match die % 8 {
            0 => Answer::Hello,
            1 => Answer::Pong,
            2 | 3 => Answer::Leaving,
            4 | 5 => Answer::Gone,
            _ => Answer::Silent(look),
        }),
        Step::Over(_) => Fact::Abandoned,
    }
}

proptest! {
    #[test]
    fn rule_1_nobody_is_started_or_ended_without_the_lock_and_every_election_ends(
        dice in proptest::collection::vec(any::<u8>(), 1..400),
        suspected: bool,
    ) {
        let known = if suspected { Known::Suspect } else { Known::Nobody };
        let mut now = Moment::START;
        let mut election = Election::new(known, START_TIMEOUT, now);
        let (mut locked, mut free) = (false, false);
        for turn in 0..100_000 {
            let step = election.step();
            match &step {
                Step::Over(_) => return Ok(()),
                Step::Start => prop_assert!(locked && free, "a start without lock or judgement"),
                Step::End | Step::Prove | Step::Probe => prop_assert!(locked, "{step:?} without the lock"),
                Step::TryLock => prop_assert!(!locked, "it has the lock"),
                Step::Greet | Step::BeginAgain(_) => locked = false,
                Step::Nap(nap) => now = now + *nap,
                _ => {}
            }
            if let Step::SeeOut(length) | Step::BeginAgain(length) = &step {
                now = now + *length;
            }
            let fact = fact(&step, dice[turn % dice.len()], turn);
            match &fact {
                Fact::Lock(turn) => locked = *turn == Turn::Ours,
                Fact::Held(held) => free = !held,
                _ if step == Step::Start => locked = false,
                _ => {}
            }
            // What waits for an answer takes its time.
            if let Fact::Answer(_) | Fact::Looked(_) = fact {
                now = now + Duration::from_millis(50);
            }
            election.heard(fact, now);
        }
        prop_assert!(false, "it goes on for ever, at {:?}", election.step());
    }
}
