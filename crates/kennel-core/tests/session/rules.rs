//! What holds for every order of events.

use kennel_core::message::Message;
use kennel_core::session::{Replay, SERVER_RESTARTED, Session, Unsent, Verdict};
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_assert, prop_oneof};

use crate::chance::holds;
use crate::lines::message;
use crate::world::{Kind, Known, Setting, Step, World};

#[test]
fn rules_4_5_and_11_hold_for_every_order_of_events() {
    holds("session", (steps(), setting()), |(steps, setting)| {
        let mut world = World::new(setting);
        for step in steps {
            world.play(step)?;
        }
        world.finish()
    });
}

#[test]
fn whatever_is_said_only_messages_pass() {
    let line = prop_oneof![
        4 => message(),
        2 => collection::vec(message(), 1..4).prop_map(|lines| format!("[{}]", lines.join(","))),
        1 => (message(), any::<u8>()).prop_map(|(line, end)| {
            String::from_utf8_lossy(&line.as_bytes()[..usize::from(end).min(line.len())]).into()
        }),
    ];
    let steps = collection::vec((0..10_u8, line), 0..40);
    holds("only messages", steps, |steps| {
        let mut session = Session::new();
        for (what, line) in steps {
            let verdict = match what {
                0 => {
                    session.handle_upstream_lost(SERVER_RESTARTED, Unsent::Nothing);
                    continue;
                }
                1 => {
                    session.handle_upstream_attached();
                    continue;
                }
                2..6 => session.handle_app_line(line.as_bytes()),
                _ => session.handle_upstream_line(line.as_bytes()),
            };
            match verdict {
                Verdict::Forward => prop_assert!(Message::parse(line.as_bytes()).is_ok()),
                Verdict::Replace(other) => prop_assert!(Message::parse(&other).is_ok()),
                Verdict::Drop | Verdict::Abandon => {}
            }
            while let Some(line) = session.poll_to_app().or_else(|| session.poll_to_upstream()) {
                prop_assert!(Message::parse(&line).is_ok());
            }
        }
        Ok(())
    });
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..8_usize;
    let step = prop_oneof![
        2 => Just(Step::Greet),
        2 => Just(Step::Confirm),
        12 => kind().prop_map(Step::Ask),
        1 => which.clone().prop_map(Step::AskTwice),
        2 => (1..4_usize).prop_map(Step::AskInBatch),
        2 => Just(Step::Tell),
        4 => which.clone().prop_map(Step::Cancel),
        4 => which.clone().prop_map(Step::AnswerServer),
        1 => which.clone().prop_map(Step::AppNonsense),
        8 => (which.clone(), any::<bool>())
            .prop_map(|(which, respelled)| Step::Answer { which, respelled }),
        1 => Just(Step::AnswerAllInBatch),
        1 => which.clone().prop_map(Step::AnswerTwice),
        5 => any::<u8>().prop_map(|n| Step::AnswerGreeting { kindly: n > 30 }),
        5 => which.clone().prop_map(Step::ServerAsks),
        2 => which.clone().prop_map(Step::ServerCancels),
        2 => Just(Step::ServerTells),
        4 => which.clone().prop_map(Step::ServerProgress),
        3 => which.clone().prop_map(Step::ServerUpdates),
        2 => Just(Step::AnswerSession),
        8 => (0..9_usize).prop_map(Step::Take),
        1 => which.clone().prop_map(Step::ServerNonsense),
        6 => Just(Step::Attach),
        6 => known().prop_map(Step::Lose),
        1 => Just(Step::GiveUp),
        1 => Just(Step::Expect),
        4 => (0..9_usize).prop_map(Step::PollApp),
        4 => (0..9_usize).prop_map(Step::PollUpstream),
    ];
    collection::vec(step, 0..100)
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        2 => Just(Kind::Ping),
        3 => Just(Kind::Read),
        3 => Just(Kind::Pay),
        2 => Just(Kind::Look),
        2 => Just(Kind::Put),
        1 => Just(Kind::GoOn),
        3 => Just(Kind::ListTools),
        2 => Just(Kind::SetLevel),
        2 => (0..3_u8).prop_map(Kind::Subscribe),
        2 => (0..3_u8).prop_map(Kind::Unsubscribe),
        2 => Just(Kind::Listen),
        2 => Just(Kind::Other),
    ]
}

fn known() -> impl Strategy<Value = Known> {
    prop_oneof![
        Just(Known::Nothing),
        (0..6_usize).prop_map(Known::Ids),
        (0..6_usize).prop_map(Known::Counted),
        (0..6_usize, 0..400_usize).prop_map(|(lines, written)| Known::Bytes { lines, written }),
    ]
}

fn setting() -> impl Strategy<Value = Setting> {
    let replay = prop_oneof![
        2 => Just(Replay::Safe),
        1 => Just(Replay::All),
        1 => Just(Replay::None)
    ];
    (any::<bool>(), any::<bool>(), replay).prop_map(|(eager, modern, replay)| Setting {
        eager,
        modern,
        replay,
    })
}
