//! The owner: by flag, else by variable, captured before anything else.

use kennel_guard::{Owner, Refusal};

/// Which variable names the owner. It is meant for us alone, and reaches nothing that is started later.
const VARIABLE: &str = "KENNEL_OWNER_PID";

/// Whom the server is bound to, if to anybody. A bad flag is an error; a bad variable is a warning, for
/// whoever set it is not at hand.
pub(super) fn find(flag: Option<&str>) -> Result<Option<Owner>, String> {
    // Taken out of the environment though the flag has the say (lesson 22).
    let variable = kennel_sys::env::take(VARIABLE);
    if let Some(text) = flag {
        let owner = Owner::named(text).map_err(|error| format!("--owner-pid: {error}"))?;
        return Ok(Some(owner));
    }
    let Some(taken) = variable else {
        return Ok(None);
    };
    match Owner::named(&taken.value.to_string_lossy()) {
        Ok(owner) => Ok(Some(owner)),
        Err(error @ Refusal::Owner(_)) => {
            crate::warn(&format!("{VARIABLE} is ignored: {error}"));
            Ok(None)
        }
        Err(error) => Err(format!("{VARIABLE}: {error}")),
    }
}
