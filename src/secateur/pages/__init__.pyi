from secateur.pages.consoles import print_sheet as print_sheet
from secateur.pages.cuda_console import print_gpu as print_gpu
from secateur.pages.curve import save_curve as save_curve
from secateur.pages.demo_console import print_demo as print_demo
from secateur.pages.hardware_console import print_hardware as print_hardware
from secateur.pages.published_console import print_published as print_published
from secateur.pages.report_writing import report as report
from secateur.pages.report_writing import report_pruned as report_pruned
