//! What holds for every order of events.

use kennel_core::message::Message;
use kennel_core::session::{SERVER_RESTARTED, Session, Verdict};
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, prop_assert, prop_oneof};

use crate::chance::holds;
use crate::lines::message;
use crate::world::{Step, World};

#[test]
fn rules_4_5_and_11_hold_for_every_order_of_events() {
    holds("session", (steps(), any::<bool>()), |(steps, eager)| {
        let mut world = World::new(eager);
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
                    session.upstream_lost(SERVER_RESTARTED);
                    continue;
                }
                1 => {
                    session.upstream_attached();
                    continue;
                }
                2..6 => session.from_app(line.as_bytes()),
                _ => session.from_upstream(line.as_bytes()),
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
        8 => any::<u8>().prop_map(|n| Step::Ask { ping: n < 40 }),
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
        1 => which.clone().prop_map(Step::ServerNonsense),
        6 => Just(Step::Attach),
        4 => Just(Step::Lose),
        1 => Just(Step::GiveUp),
        1 => Just(Step::Expect),
        4 => (0..9_usize).prop_map(Step::PollApp),
        4 => (0..9_usize).prop_map(Step::PollUpstream),
    ];
    collection::vec(step, 0..80)
}
