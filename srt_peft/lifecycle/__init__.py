"""What happens between updates.

past       a run becomes history: its texts, its states and its log, and what is kept of them
following  the next update's recipe, on top of that
which      the checkpoint that a person means, by its run or by its own folder
merge      an adapter into the base that it was trained on -> a whole model
inspect    the review state and its log, read: what is due, what lapses, one example's whole history
publish    an update as a folder, sent to the hub: pushed is its form, card its model card, hub the client
from_hub   the next update, on top of one that was pushed
leeches    examples that lapse again and again, set aside in the newest checkpoint, or taken back
forget     examples vanish: what is done, and how it is completed after a kill
choosing   who is to be forgotten; `holders`: who else has them; `erasing`: files written anew without them
audit      a run, held against the receipts of what it has forgotten
"""
