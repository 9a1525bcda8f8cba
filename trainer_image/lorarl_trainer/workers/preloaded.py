"""Ray imports this module in its processes (RAY_preload_python_modules), for what the import does."""

from lorarl_trainer.workers.ahead import import_ahead

import_ahead()
