//! A lifetime on virtual time, and random things that happen to it.

use std::time::Duration;

use kennel_core::lifetime::{ClientId, Lifetime, Liveness, Owner, Policy};
use kennel_core::time::Moment;
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, option, prop_oneof};

/// A moment in a story: `n` seconds after the start.
pub(crate) fn second(n: u64) -> Moment {
    Moment::START + seconds(n)
}

pub(crate) fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// One nanosecond earlier.
pub(crate) fn just_before(moment: Moment) -> Moment {
    Moment::from_nanos(moment.as_nanos().saturating_sub(1))
}

/// What may happen, one for each call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Happening {
    Attached(ClientId, Liveness),
    Gone(ClientId),
    Traffic(ClientId),
    OwnerGone,
    ServerExited,
    ServerStarted,
    StopRequested,
    Tick,
}

/// How long nothing happens before.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pause {
    None,
    For(Duration),
    JustBeforeDeadline,
    ToDeadline,
    PastDeadline(Duration),
}

pub(crate) type Step = (Pause, Happening);

/// A lifetime and what time it is there.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) life: Lifetime,
    pub(crate) now: Moment,
}

impl World {
    pub(crate) fn new(policy: Policy, owner: Owner) -> World {
        let now = second(1000);
        World {
            life: Lifetime::new(policy, owner, now),
            now,
        }
    }

    /// Lets the pause go by, then hands in what happens.
    pub(crate) fn play(&mut self, (pause, happening): Step) {
        let deadline = self.life.next_timeout().unwrap_or(self.now);
        self.now = self.now.max(match pause {
            Pause::None => self.now,
            Pause::For(length) => self.now + length,
            Pause::JustBeforeDeadline => just_before(deadline),
            Pause::ToDeadline => deadline,
            Pause::PastDeadline(length) => deadline + length,
        });
        self.hand_in(happening);
    }

    pub(crate) fn hand_in(&mut self, happening: Happening) {
        let (life, now) = (&mut self.life, self.now);
        match happening {
            Happening::Attached(id, sight) => life.handle_client_attached(id, sight, now),
            Happening::Gone(id) => life.handle_client_gone(id, now),
            Happening::Traffic(id) => life.handle_traffic(id, now),
            Happening::OwnerGone => life.handle_owner_gone(now),
            Happening::ServerExited => life.handle_server_exited(now),
            Happening::ServerStarted => life.handle_server_started(now),
            Happening::StopRequested => life.handle_stop(now),
            Happening::Tick => life.advance(now),
        }
    }
}

/// The clients random steps are about. Few, so that they meet themselves again.
pub(crate) const CROWD: std::ops::Range<u64> = 0..4;

pub(crate) fn policies() -> impl Strategy<Value = Policy> {
    let lengths = || (0..4u64).prop_map(|n| seconds([0, 5, 60, 1800][n as usize]));
    (option::of(lengths()), lengths(), option::of(lengths())).prop_map(
        |(linger, grace, max_idle)| Policy {
            linger,
            grace,
            max_idle,
        },
    )
}

pub(crate) fn owners() -> impl Strategy<Value = Owner> {
    prop_oneof![Just(Owner::None), Just(Owner::Watched)]
}

/// Anything in any order.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    collection::vec((pauses(), happenings()), 0..40)
}

/// Anything but a stop that was asked for.
pub(crate) fn steps_unasked() -> impl Strategy<Value = Vec<Step>> {
    steps().prop_map(|mut steps| {
        steps.retain(|(_, happening)| !matches!(happening, Happening::StopRequested));
        steps
    })
}

fn pauses() -> impl Strategy<Value = Pause> {
    prop_oneof![
        4 => Just(Pause::None),
        4 => (0..10_000u64).prop_map(|n| Pause::For(Duration::from_millis(n))),
        1 => (0..4_000u64).prop_map(|n| Pause::For(seconds(n))),
        2 => Just(Pause::JustBeforeDeadline),
        1 => Just(Pause::ToDeadline),
        1 => (0..100_000u64).prop_map(|n| Pause::PastDeadline(seconds(n))),
    ]
}

fn happenings() -> impl Strategy<Value = Happening> {
    let ids = || CROWD.prop_map(ClientId);
    let sights = any::<bool>().prop_map(|seen| match seen {
        true => Liveness::Watchable,
        false => Liveness::Unwatchable,
    });
    prop_oneof![
        6 => (ids(), sights).prop_map(|(id, sight)| Happening::Attached(id, sight)),
        6 => ids().prop_map(Happening::Gone),
        4 => ids().prop_map(Happening::Traffic),
        2 => Just(Happening::OwnerGone),
        1 => Just(Happening::ServerExited),
        2 => Just(Happening::ServerStarted),
        1 => Just(Happening::StopRequested),
        3 => Just(Happening::Tick),
    ]
}
