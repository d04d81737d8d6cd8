//! The confinement of this process. Read once: nothing in Kennel changes it.

use std::sync::OnceLock;

use kennel_sys::confinement::Confinement;

/// The confinement of this process, or why it cannot be read.
pub(crate) fn ours() -> Result<&'static Confinement, &'static str> {
    static OURS: OnceLock<Result<Confinement, String>> = OnceLock::new();
    let ours = OURS.get_or_init(|| {
        let read = Confinement::of_this_process();
        read.map_err(|error| format!("cannot read the confinement of this process: {error}"))
    });
    ours.as_ref().map_err(String::as_str)
}

/// Why a session with this confinement needs a dedicated server, if it does.
pub(crate) fn why_dedicated(ours: Result<&Confinement, &str>) -> Option<String> {
    match ours {
        Err(why) => Some(why.to_owned()),
        Ok(ours) if ours.is_filtered() => Some(FILTERED.to_owned()),
        Ok(_) => None,
    }
}

/// The reason given for a process with a seccomp filter or `NoNewPrivs`.
pub(crate) const FILTERED: &str =
    "confined by seccomp or NoNewPrivs, which cannot be compared with other sessions";
