//! How confined this process is. Read once: nothing in Kennel changes it.

use std::sync::OnceLock;

use kennel_sys::confinement::Confinement;

/// The confinement of this process; why it cannot be read, for people.
pub(crate) fn ours() -> Result<&'static Confinement, &'static str> {
    static OURS: OnceLock<Result<Confinement, String>> = OnceLock::new();
    let ours = OURS.get_or_init(|| {
        let read = Confinement::of_this_process();
        read.map_err(|error| format!("what confines this process cannot be read: {error}"))
    });
    ours.as_ref().map_err(String::as_str)
}

/// Why a session with this confinement has a server of its own, if it must.
pub(crate) fn why_dedicated(ours: Result<&Confinement, &str>) -> Option<String> {
    match ours {
        Err(why) => Some(why.to_owned()),
        Ok(ours) if ours.is_filtered() => Some(FILTERED.to_owned()),
        Ok(_) => None,
    }
}

/// Said of a process with a seccomp filter or `NoNewPrivs`.
pub(crate) const FILTERED: &str =
    "confined by seccomp or NoNewPrivs: nobody can tell whether others are confined alike";
