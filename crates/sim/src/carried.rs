//! A hook carried by an async device, so that seeds try both powers with the same hooks.

use std::rc::Rc;

use block::control::Resolved;
use block::{ByteRange, Device, Hooks, Info, Lower, Needs, Push, Report, Request, Result};
use kind::Value;

/// The option of an assembly that puts a hook into a device. No kind knows it.
pub const AS_DEVICE: (&str, Value) = ("as-device", Value::Switch(true));

/// A device that asks a hook on the way down and on the way up.
pub(crate) struct Carried {
    info: Info,
    lower: Lower,
    hooks: Rc<dyn Hooks>,
}

impl Carried {
    /// Carries `hooks` above `lower`.
    pub fn new(hooks: Rc<dyn Hooks>, lower: Lower) -> Self {
        Self { info: lower.info().clone(), lower, hooks }
    }
}

impl Device for Carried {
    fn info(&self) -> &Info {
        &self.info
    }

    fn needs(&self) -> Needs {
        Needs::children(1)
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
