"""Speaks to code hosts: GitHub as an app, GitLab with the token of a project."""
