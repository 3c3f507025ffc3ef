"""The LangGraph protocol over Outlive: existing clients move over by changing a URL.

Decides how that protocol's words map to ours; what a run, a thread or an end is stays Outlive's.  ``wire``
has the rules of the wire, ``bodies`` what clients send, ``shapes`` what they are sent, ``frames`` a run's
events as their streams have them; the other modules are the routes, named after what they are about.
"""
