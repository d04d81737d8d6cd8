//! The features that a server announces in its handshake, compared with those of the server before.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use crate::message::Part;

/// The kinds of lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum List {
    Tools,
    Prompts,
    Resources,
}

impl List {
    /// All kinds, in order.
    pub(super) const ALL: [List; 3] = [List::Tools, List::Prompts, List::Resources];

    /// The name of the capability.
    fn name(self) -> &'static str {
        match self {
            List::Tools => "tools",
            List::Prompts => "prompts",
            List::Resources => "resources",
        }
    }

    /// The method of the notification that it changed.
    pub(super) fn changed(self) -> &'static str {
        match self {
            List::Tools => "notifications/tools/list_changed",
            List::Prompts => "notifications/prompts/list_changed",
            List::Resources => "notifications/resources/list_changed",
        }
    }
}

/// The features of the latest server, and the notifications that the first one announced.
#[derive(Debug)]
pub(super) struct Features {
    server: Option<u64>,
    capabilities: [Option<u64>; 3],
    /// Whether the app may be notified of changes of each list.
    announced: [bool; 3],
}

impl Features {
    /// Reads the features from a response to `initialize`.
    pub(super) fn of(result: &Part<'_>) -> Features {
        Features {
            server: server(result),
            capabilities: List::ALL.map(|list| Some(digest(&capability(result, list)?))),
            announced: List::ALL.map(|list| {
                let says = capability(result, list).map(|it| it.member("listChanged"));
                matches!(says, Some(Ok(Some(says))) if says.text() == "true")
            }),
        }
    }

    /// Replaces the features by those of another server. Returns the lists that may have changed: all, if it is another
    /// program.
    pub(super) fn renew(&mut self, result: &Part<'_>) -> Vec<List> {
        let now = Features {
            // These depend on the response that the app got.
            announced: self.announced,
            ..Features::of(result)
        };
        let before = std::mem::replace(self, now);
        let differs = |list: &List| {
            let place = *list as usize;
            before.server != self.server || before.capabilities[place] != self.capabilities[place]
        };
        List::ALL.into_iter().filter(differs).collect()
    }

    /// Whether the app may be notified that this list changed.
    pub(super) fn announces(&self, list: List) -> bool {
        self.announced[list as usize]
    }
}

/// A hash of a value, independent of its spelling.
pub(super) fn digest(value: &Part<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.canonical().hash(&mut hasher);
    hasher.finish()
}

fn server(result: &Part<'_>) -> Option<u64> {
    let server = result.member("serverInfo").ok().flatten();
    server.map(|server| digest(&server))
}

fn capability<'a>(result: &Part<'a>, list: List) -> Option<Part<'a>> {
    result.at(&["capabilities", list.name()]).ok().flatten()
}
