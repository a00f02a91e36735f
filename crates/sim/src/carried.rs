//! A device that runs a hook, so that a test can run the same hook in the engine or as a device.

use std::rc::Rc;

use block::control::Resolved;
use block::{ByteRange, Device, Hooks, Info, Lower, Push, Report, Request, Result};
use kind::Value;

/// Option of [`Assembly::add`](crate::Assembly::add) for a hook: add the hook as a device instead of in the engine.
pub const AS_DEVICE: (&str, Value) = ("as-device", Value::Switch(true));

/// A device that calls a hook for each request on its way down and for each reply on its way up.
pub(crate) struct Carried {
    info: Info,
    lower: Lower,
    hooks: Rc<dyn Hooks>,
}

impl Carried {
    /// Creates a device over `lower` that calls the hook `hooks`.
    pub fn new(hooks: Rc<dyn Hooks>, lower: Lower) -> Self {
        Self { info: lower.info().clone(), lower, hooks }
    }
}

impl Device for Carried {
    fn info(&self) -> &Info {
        &self.info
    }

    async fn submit(&self, request: &mut Request) -> Result<()> {
        match self.hooks.push(request) {
            Push::Forward => self.lower.forward(&mut request.op).await,
            Push::Done(result) => result,
            Push::Watch(saved) => {
                let mut result = self.lower.forward(&mut request.op).await;
                self.hooks.pop(saved, request, &mut result);
                result
            }
        }
    }

    async fn resolve(&self, range: ByteRange) -> Result<Resolved> {
        Ok(Resolved::same(range, ""))
    }

    fn report(&self) -> Report {
        self.hooks.report()
    }
}
