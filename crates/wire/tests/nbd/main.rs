//! Tests of the NBD codec through its public interface.

mod client;
mod golden;
mod handed;
mod limits;
mod negotiate;
mod pair;
mod server;
mod tls;
mod transmission;
mod uri;
