//! The node agent: applies device intents on its own node and always puts the settings back.
