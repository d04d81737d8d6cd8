//! The protocol era of the server. It is learned from the app's first request, and never probed.

use crate::message::{Key, Message, Outcome};
use crate::mux::{Opening, opening};

/// The era that the first request has shown.
#[derive(Debug, Default)]
pub(super) enum EraSeen {
    /// No request yet.
    #[default]
    NoRequest,
    /// Its response will show it. The refusal of a probe does, too.
    Asked {
        key: Key,
        is_probe: bool,
    },
    Known(bool),
    /// It shows nothing.
    Undetermined,
}

impl EraSeen {
    /// Records a request of the app.
    pub(super) fn asked(&mut self, message: &Message<'_>) {
        if !matches!(self, EraSeen::NoRequest) {
            return;
        }
        let Some(key) = message.id().map(|id| id.key()) else {
            return;
        };
        *self = match opening(message) {
            Opening::Ping => EraSeen::NoRequest,
            Opening::Probe => EraSeen::Asked {
                key,
                is_probe: true,
            },
            Opening::Modern(_) => EraSeen::Asked {
                key,
                is_probe: false,
            },
            Opening::Legacy(_) | Opening::Unclear => EraSeen::Undetermined,
        };
    }

    /// Records a response of the server.
    pub(super) fn answered(&mut self, answered: &Key, outcome: &Outcome<'_>) {
        if let EraSeen::Asked { key, is_probe } = self
            && key == answered
        {
            *self = match (outcome, is_probe) {
                (Outcome::Result(_), true) => EraSeen::Known(true),
                // Some legacy servers answer every request with a result; only modern ones have this member.
                (Outcome::Result(result), false) => match result.member("resultType") {
                    Ok(Some(_)) => EraSeen::Known(true),
                    Ok(None) | Err(_) => EraSeen::Undetermined,
                },
                (Outcome::Error(_), true) => EraSeen::Known(false),
                (Outcome::Error(_), false) => EraSeen::Undetermined,
            };
        }
    }

    pub(super) fn is_modern(&self) -> Option<bool> {
        match self {
            EraSeen::Known(modern) => Some(*modern),
            EraSeen::NoRequest | EraSeen::Asked { .. } | EraSeen::Undetermined => None,
        }
    }
}
