//! Carries out a client's request as a future.

use std::rc::Rc;

use block::{Done, OneShot, Op, Request, Result};

use super::{Engine, Portal, Share, Sink};

impl Engine {
    /// Carries out a client's request: submits the request when its reserve is free, and waits for its result. If the
    /// future is dropped, an admitted request continues.
    pub async fn call(&self, portal: &Portal, op: Op) -> Done {
        let answer = Rc::new(OneShot::default());
        self.admit(portal, op, &answer, 0).await;
        answer.wait().await
    }

    /// Carries out a request like [`Engine::call`], as one of the client with the share `share`.
    pub async fn call_for(&self, share: &Rc<Share>, portal: &Portal, op: Op) -> Done {
        let call = Rc::new(Call { answer: OneShot::default(), share: share.clone() });
        self.admit(portal, op, &call, 0).await;
        call.answer.wait().await
    }

    /// Begins a client's request like [`Engine::submit`], as soon as the reserve of the request is free.
    pub async fn admit(
        &self,
        portal: &Portal,
        mut op: Op,
        sink: &Rc<impl Sink + 'static>,
        token: u64,
    ) {
        while let Err(back) = self.submit(portal, op, sink.clone(), token) {
            op = back;
            self.wait_capacity(portal, &op, sink.share()).await;
        }
    }
}

impl Sink for OneShot<Done> {
    fn done(&self, _: u64, request: Request, result: Result<()>) {
        self.set(Done { op: request.op, result });
    }
}

/// The sink of a request that [`Engine::call_for`] carries out.
struct Call {
    answer: OneShot<Done>,
    share: Rc<Share>,
}

impl Sink for Call {
    fn done(&self, _: u64, request: Request, result: Result<()>) {
        self.answer.set(Done { op: request.op, result });
    }

    fn share(&self) -> Option<&Share> {
        Some(&self.share)
    }
}
