"""Formats of the archive's files: conversion between bytes and values, without I/O.

FORMAT.md is the specification.
"""
