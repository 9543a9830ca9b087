//! The collector's senders, known by the API server.

use eadt_collector::progress::reviews::{ReviewedUser, TokenReviewer};
use eadt_collector::source::BoxFuture;
use eadt_kubernetes::api::reviews::TokenReviews;

/// Puts tokens to the API server.
#[derive(Debug)]
pub struct ApiServerTokenReviewer(TokenReviews);

impl ApiServerTokenReviewer {
    pub fn new(reviews: TokenReviews) -> Self {
        Self(reviews)
    }
}

impl TokenReviewer for ApiServerTokenReviewer {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Option<ReviewedUser>, String>> {
        Box::pin(async move {
            let bearer = self.0.review(token, audience).await?;
            Ok(bearer.map(|bearer| ReviewedUser { user: bearer.user, audiences: bearer.audiences }))
        })
    }
}
