//! The collector's senders, known by the API server.

use eadt_collector::progress::reviews::{AuthenticatedUser, TokenReviewer};
use eadt_collector::source::BoxFuture;
use eadt_kubernetes::api::reviews::TokenReviews;

/// Puts tokens to the API server.
#[derive(Debug)]
pub struct ByTokenReview(TokenReviews);

impl ByTokenReview {
    pub fn new(reviews: TokenReviews) -> Self {
        Self(reviews)
    }
}

impl TokenReviewer for ByTokenReview {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> BoxFuture<'a, Result<Option<AuthenticatedUser>, String>> {
        Box::pin(async move {
            let bearer = self.0.review(token, audience).await?;
            Ok(bearer.map(|bearer| AuthenticatedUser { user: bearer.user, audiences: bearer.audiences }))
        })
    }
}
