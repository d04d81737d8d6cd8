//! The protocol era of the server. It is learned from the app's first request, and never probed.

use crate::message::{Key, Message, Outcome};
use crate::mux::{Opening, opening};

/// RequestKind the first request has shown.
#[derive(Debug, Default)]
pub(super) enum EraSeen {
    /// No request yet.
    #[default]
    Nothing,
    /// Its response will show it. The refusal of a probe does, too.
    Asked {
        key: Key,
        is_probe: bool,
    },
    Told(bool),
    /// It shows nothing.
    Untold,
}

impl EraSeen {
    /// Records a request of the app.
    pub(super) fn asked(&mut self, message: &Message<'_>) {
        if !matches!(self, EraSeen::Nothing) {
            return;
        }
        let Some(key) = message.id().map(|id| id.key()) else {
            return;
        };
        *self = match opening(message) {
            Opening::Ping => EraSeen::Nothing,
            Opening::Probe => EraSeen::Asked {
                key,
                is_probe: true,
            },
            Opening::Modern(_) => EraSeen::Asked {
                key,
                is_probe: false,
            },
            Opening::Legacy(_) | Opening::Unclear => EraSeen::Untold,
        };
    }

    /// Records a response of the server.
    pub(super) fn answered(&mut self, answered: &Key, outcome: &Outcome<'_>) {
        if let EraSeen::Asked { key, is_probe } = self
            && key == answered
        {
            *self = match (outcome, is_probe) {
                (Outcome::Result(_), true) => EraSeen::Told(true),
                // Some legacy servers answer every request with a result; only modern ones have this member.
                (Outcome::Result(result), false) => match result.member("resultType") {
                    Ok(Some(_)) => EraSeen::Told(true),
                    Ok(None) | Err(_) => EraSeen::Untold,
                },
                (Outcome::Error(_), true) => EraSeen::Told(false),
                (Outcome::Error(_), false) => EraSeen::Untold,
            };
        }
    }

    pub(super) fn is_modern(&self) -> Option<bool> {
        match self {
            EraSeen::Told(modern) => Some(*modern),
            EraSeen::Nothing | EraSeen::Asked { .. } | EraSeen::Untold => None,
        }
    }
}
