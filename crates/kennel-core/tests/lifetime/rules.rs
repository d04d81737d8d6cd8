//! What holds for every order of events.

use std::time::Duration;

use kennel_core::lifetime::{ClientId, Liveness, Owner, Policy, Reason, State};
use kennel_core::time::Moment;
use proptest::prelude::{Just, Strategy, any};
use proptest::test_runner::TestCaseResult;
use proptest::{prop_assert, prop_assert_eq, prop_oneof};

use crate::chance::holds;
use crate::model::Model;
use crate::world::{
    CROWD, Happening, Pause, World, just_before, owners, policies, seconds, steps, steps_unasked,
};

/// A client that random steps know nothing of.
const FAITHFUL: ClientId = ClientId(99);

#[test]
fn it_decides_as_the_plain_model_does() {
    let cases = (policies(), owners(), steps());
    holds("model", cases, |(policy, owner, steps)| {
        let mut world = World::new(policy, owner);
        let mut model = Model::new(policy, owner, world.now);
        prop_assert_eq!(world.life.next_timeout(), model.deadline());
        for step in steps {
            world.play(step);
            model.hand_in(step.1, world.now);
            prop_assert_eq!(world.life.verdict(), model.verdict(), "after {:?}", step);
            prop_assert_eq!(
                world.life.next_timeout(),
                model.deadline(),
                "after {:?}",
                step
            );
            prop_assert_eq!(world.life.clients(), model.clients(), "after {:?}", step);
        }
        Ok(())
    });
}

#[test]
fn rule_2_once_nobody_is_attached_the_end_comes_in_bounded_time() {
    let cases = (policies(), steps_unasked(), any::<bool>());
    holds("rule 2", cases, |(policy, steps, owner_goes)| {
        let mut world = with_faithful_client(policy, Owner::Watched, Liveness::Watchable);
        let mut unowned = owner_goes;
        for step in steps {
            world.play(step);
            unowned |= matches!(step.1, Happening::OwnerGone);
        }
        if owner_goes {
            world.hand_in(Happening::OwnerGone);
        }
        everybody_leaves(&mut world);

        let grace = unowned.then_some(policy.grace);
        match [grace, policy.linger].into_iter().flatten().min() {
            Some(bound) => ends_at_its_deadline(&mut world, bound),
            None => {
                // No owner is gone, and linger is off: the author did not want an end by time.
                prop_assert!(world.life.next_timeout().is_none());
                Ok(())
            }
        }
    });
}

#[test]
fn rule_2_phantoms_alone_hold_a_server_no_longer_than_max_idle() {
    let cases = (policies(), owners(), steps_unasked());
    holds("phantoms", cases, |(policy, owner, steps)| {
        let mut world = with_faithful_client(policy, owner, Liveness::Watchable);
        for step in steps {
            world.play(step);
        }
        world.hand_in(Happening::Attached(ClientId(100), Liveness::Unwatchable));
        everybody_leaves(&mut world);

        match policy.max_idle {
            Some(max_idle) => ends_at_its_deadline(&mut world, max_idle),
            None => {
                prop_assert!(world.life.next_timeout().is_none());
                Ok(())
            }
        }
    });
}

#[test]
fn rule_3_no_verdict_while_a_client_is_provably_alive() {
    let cases = (policies(), owners(), steps_unasked());
    holds("rule 3, seen", cases, |(policy, owner, steps)| {
        let mut world = with_faithful_client(policy, owner, Liveness::Watchable);
        for step in steps {
            world.play(step);
            prop_assert_eq!(world.life.verdict(), None, "after {:?}", step);
            prop_assert_eq!(world.life.next_timeout(), None, "after {:?}", step);
        }
        Ok(())
    });
}

#[test]
fn rule_3_no_verdict_while_an_unseen_client_is_heard_within_max_idle() {
    let patient = policies().prop_filter("a max idle of zero bears no pause at all", |policy| {
        policy.max_idle != Some(seconds(0))
    });
    let cases = (patient, owners(), steps_unasked());
    holds("rule 3, unseen", cases, |(policy, owner, steps)| {
        let mut world = with_faithful_client(policy, owner, Liveness::Unwatchable);
        // As rarely as it may be heard, and not a nanosecond more.
        let max_idle = policy.max_idle.unwrap_or(seconds(100_000));
        let pause = Pause::For(max_idle - Duration::from_nanos(1));
        for (_, happening) in steps {
            world.play((pause, happening));
            world.hand_in(Happening::Tick);
            prop_assert_eq!(world.life.verdict(), None, "after {:?}", happening);
            world.hand_in(Happening::Traffic(FAITHFUL));
        }
        Ok(())
    });
}

#[test]
fn rule_3_owner_gone_with_a_client_attached_never_kills() {
    let cases = (policies(), steps_unasked());
    holds("owner gone", cases, |(policy, steps)| {
        let mut world = with_faithful_client(policy, Owner::Watched, Liveness::Watchable);
        world.hand_in(Happening::OwnerGone);
        for step in steps {
            world.play(step);
            world.hand_in(Happening::OwnerGone);
            world.play((Pause::For(seconds(100_000)), Happening::Tick));
            prop_assert_eq!(world.life.verdict(), None, "after {:?}", step);
        }
        Ok(())
    });
}

#[test]
fn rule_3_a_transient_zero_never_kills() {
    let returns = prop_oneof![Just(Pause::None), Just(Pause::JustBeforeDeadline)];
    let server_up = steps_unasked().prop_map(|mut steps| {
        steps.retain(|(_, happening)| !matches!(happening, Happening::ServerExited));
        steps
    });
    let patient = policies().prop_filter("without patience every zero is one", |policy| {
        policy.linger != Some(seconds(0)) && policy.grace != seconds(0)
    });
    let cases = (patient, owners(), server_up, returns, any::<bool>());
    holds("zero", cases, |(policy, owner, steps, back, late_tick)| {
        let mut world = with_faithful_client(policy, owner, Liveness::Watchable);
        for step in steps {
            world.play(step);
        }
        everybody_leaves(&mut world);

        world.hand_in(Happening::Tick);
        world.play((back, Happening::Tick));
        if late_tick {
            // Just at the deadline, but the arrival is handed in first.
            world.now = world.life.next_timeout().unwrap_or(world.now);
        }
        world.hand_in(Happening::Attached(FAITHFUL, Liveness::Watchable));
        world.hand_in(Happening::Tick);
        prop_assert_eq!(world.life.verdict(), None);

        world.play((Pause::For(seconds(100_000)), Happening::Tick));
        prop_assert_eq!(world.life.verdict(), None);
        Ok(())
    });
}

#[test]
fn lesson_25_the_backstop_fires_only_on_clients_neither_seen_nor_heard() {
    let cases = (policies(), owners(), steps_unasked());
    holds("backstop", cases, |(policy, owner, steps)| {
        let mut world = World::new(policy, owner);
        let mut sights = [None; CROWD.end as usize];
        let mut heard = world.now;
        for step in steps {
            world.play(step);
            if let Some(verdict) = world.life.verdict() {
                if let Reason::Silent { silent_for } = verdict.reason {
                    let max_idle = policy.max_idle.expect("without it there is no backstop");
                    prop_assert!(sights.iter().any(Option::is_some), "nobody was attached");
                    prop_assert!(
                        !sights.contains(&Some(Liveness::Watchable)),
                        "one was seen alive"
                    );
                    prop_assert!(world.now - heard >= max_idle, "one was heard");
                    prop_assert!(silent_for >= max_idle);
                }
                break;
            }
            match step.1 {
                Happening::Attached(ClientId(id), sight) => {
                    let known = &mut sights[id as usize];
                    *known = (*known).max(Some(sight));
                    heard = world.now;
                }
                Happening::Gone(ClientId(id)) => sights[id as usize] = None,
                Happening::Traffic(ClientId(id)) if sights[id as usize].is_some() => {
                    heard = world.now;
                }
                _ => {}
            }
        }
        Ok(())
    });
}

#[test]
fn a_verdict_is_final() {
    let cases = (policies(), owners(), steps(), steps());
    holds("final", cases, |(policy, owner, steps, more_steps)| {
        let mut world = World::new(policy, owner);
        for step in steps {
            world.play(step);
        }
        world.hand_in(Happening::StopRequested);
        let verdict = world.life.verdict();
        prop_assert!(verdict.is_some());
        for step in more_steps {
            world.play(step);
            prop_assert_eq!(world.life.verdict(), verdict, "after {:?}", step);
            prop_assert_eq!(world.life.state(), State::Ended, "after {:?}", step);
            prop_assert_eq!(world.life.next_timeout(), None, "after {:?}", step);
        }
        Ok(())
    });
}

#[test]
fn rule_10_a_deadline_is_honest() {
    let cases = (policies(), owners(), steps());
    holds("deadline", cases, |(policy, owner, steps)| {
        let mut world = World::new(policy, owner);
        for step in steps {
            world.play(step);
            let before = world.life.verdict();
            let mut early = world.life.clone();
            match world.life.next_timeout() {
                None => early.advance(Moment::END),
                Some(deadline) if deadline > world.now => early.advance(just_before(deadline)),
                Some(_) => {}
            }
            prop_assert_eq!(early.verdict(), before, "too early after {:?}", step);

            if let Some(deadline) = world.life.next_timeout() {
                let mut punctual = world.life.clone();
                punctual.advance(deadline);
                prop_assert!(
                    punctual.verdict().is_some(),
                    "a useless tick after {:?}",
                    step
                );
            }
        }
        Ok(())
    });
}

fn with_faithful_client(policy: Policy, owner: Owner, sight: Liveness) -> World {
    let mut world = World::new(policy, owner);
    world.hand_in(Happening::Attached(FAITHFUL, sight));
    world
}

/// Everybody of the crowd, and the faithful one last; at once, and with the server up.
fn everybody_leaves(world: &mut World) {
    world.hand_in(Happening::ServerStarted);
    for id in CROWD {
        world.hand_in(Happening::Gone(ClientId(id)));
    }
    world.hand_in(Happening::Gone(FAITHFUL));
}

/// Only ticks follow, at the announced deadlines: the first of them brings the end, in time.
fn ends_at_its_deadline(world: &mut World, within: Duration) -> TestCaseResult {
    prop_assert_eq!(world.life.verdict(), None);
    let latest = world.now + within;
    prop_assert!(
        world.life.next_timeout().is_some(),
        "nothing would ever end it"
    );
    world.play((Pause::ToDeadline, Happening::Tick));
    prop_assert!(world.life.verdict().is_some());
    prop_assert!(world.now <= latest);
    Ok(())
}
