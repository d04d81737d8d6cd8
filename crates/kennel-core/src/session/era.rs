//! Which protocol the server was seen to speak: learned from the app's own first request, never asked.

use crate::message::{Key, Message, Outcome};
use crate::mux::{Opening, opening};

/// What the first request showed.
#[derive(Debug, Default)]
pub(super) enum EraSeen {
    /// There was no request yet.
    #[default]
    Nothing,
    /// Its answer will tell. A probe that is refused is told by that as well.
    Asked {
        key: Key,
        is_probe: bool,
    },
    Told(bool),
    /// It says nothing about the server.
    Untold,
}

impl EraSeen {
    /// A request of the app's.
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

    /// An answer of the server's.
    pub(super) fn answered(&mut self, answered: &Key, outcome: &Outcome<'_>) {
        if let EraSeen::Asked { key, is_probe } = self
            && key == answered
        {
            *self = match (outcome, is_probe) {
                (Outcome::Result(_), true) => EraSeen::Told(true),
                // Some legacy servers answer whatever they are asked; only a modern one says this.
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
