//! x
#![allow(dead_code)]
mod auth;
mod cli;
mod config;
mod limits;
mod settings;
mod state;
