"""Services that the lab starts in processes of their own. Nothing here is imported by the lab itself."""
