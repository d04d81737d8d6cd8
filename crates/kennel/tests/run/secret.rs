//! What every test looks for afterwards (`kennel_testkit::Canary`) is worth looking for: it was there.

use kennel_testkit::{CANARY, Canary, Client, Scope};

use crate::stage::{server_of, shared, solo};

#[test]
fn a_secret_of_the_environment_reaches_the_server_and_nobodys_arguments() {
    for session in [solo, shared] {
        let scope = Scope::new("secret");
        let mut client = Client::begin(&mut session(&scope));
        let server = server_of(&mut client);
        let environ = std::fs::read(format!("/proc/{}/environ", server.pid())).unwrap();
        let wanted = format!("{CANARY}={}", Canary::of_run().value());
        let mut pairs = environ.split(|&byte| byte == 0);
        assert!(pairs.any(|pair| pair == wanted.as_bytes()));
        let told = Canary::of_run().among_arguments();
        assert!(told.is_empty(), "{told:?}");
    }
}
