//! Tests of the core of checksum devices.

mod above;
mod basics;
mod beneath;
mod copied;
mod copies;
mod costs;
mod crashes;
mod enumerate;
mod making;
mod mirrors;
mod model;
mod parts;
mod scene;
mod unverified;
