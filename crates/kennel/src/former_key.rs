//! The keys of earlier builds. A session looks for a daemon with such a key before it starts one, so that no second
//! server writes to the same data. A version is removed when no build with it is in use any more.

mod version_1;
mod version_2;

use std::ffi::OsString;

use kennel_core::hello::{ClientHello, KeyFields, Text};
use kennel_sys::confinement::Confinement;
use kennel_sys::text::os_string;

use crate::key::variables::{Ecosystem, VariableInput};
use crate::key::{self, KeyInput};
use crate::sharing::table;
pub(crate) use version_2::VERSION;

/// The former keys of the client that sent this hello, the newest version first; none if its key is of another version.
/// The hello was made by [`hello_of`], or by a build with the key of version 2.
pub(crate) fn of_hello(hello: &ClientHello, confinement: &Confinement) -> Vec<String> {
    let keys = |what: &KeyInput<'_>| {
        vec![
            version_2::of(what, confinement),
            version_1::of(what, confinement),
        ]
    };
    key::with_key_input(hello, keys).unwrap_or_default()
}

/// The hello that a session sends to a daemon with a former key: a build with the key of [`VERSION`] serves clients
/// that name this version, and computes the key from the names that counted then. Later builds compute their own key
/// from the whole environment. `cwd_given`: `--cwd` was given.
pub(crate) fn hello_of(hello: &ClientHello, cwd_given: bool) -> ClientHello {
    let os = |text: &Text| os_string(text.as_bytes());
    let command: Vec<OsString> = hello.spec.command.iter().map(os).collect();
    let pair = |(name, value): &(Text, Text)| (os(name), os(value));
    let env: Vec<(OsString, OsString)> = hello.env.iter().map(pair).collect();
    let fields = hello.key.as_ref();
    let named = fields.and_then(|fields| fields.env_key.as_ref());
    let env_key: Option<Vec<OsString>> = named.map(|names| names.iter().map(os).collect());
    let known = table::variables_of(&command);
    let names = version_2::counted(VariableInput {
        env: &env,
        env_key: env_key.as_deref(),
        known: known.as_deref(),
        cwd_given,
        ecosystem: Ecosystem::of(&command),
    });
    ClientHello {
        key: fields.map(|fields| KeyFields {
            version: VERSION,
            names: names
                .iter()
                .map(|name| Text::from(name.as_encoded_bytes()))
                .collect(),
            ..fields.clone()
        }),
        ..hello.clone()
    }
}
