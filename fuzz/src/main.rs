//! Throws bytes at a target: with the engine, ever new ones; without it, those of the files that are named.
#![cfg_attr(feature = "engine", no_main)]

#[cfg(feature = "engine")]
mod engine {
    use std::sync::OnceLock;

    use kennel_fuzz::Target;
    use libfuzzer_sys::fuzz_target;

    /// The arguments are the engine's.
    fn target() -> Target {
        static TARGET: OnceLock<Target> = OnceLock::new();
        *TARGET.get_or_init(|| {
            let name = std::env::var("FUZZ_TARGET").expect("FUZZ_TARGET names a target");
            name.parse().expect("FUZZ_TARGET names a target")
        })
    }

    fuzz_target!(|bytes: &[u8]| target().check(bytes));
}

#[cfg(not(feature = "engine"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage =
        "usage: kennel-fuzz message|mux|session|lines|hello|record|lock|servers|wrap FILE...";
    let target: kennel_fuzz::Target = arguments.next().ok_or(usage)?.parse()?;
    for file in arguments {
        target.check(&std::fs::read(file)?);
    }
    Ok(())
}
